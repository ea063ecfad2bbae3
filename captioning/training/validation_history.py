"""Reads the validations of a run from its folder, and decides whether the run is over."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from captioning.config import Config, every_key, load_config
from captioning.metrics.metric_sum import MetricSum
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.training.output_folder import working_folder
from captioning.training.split_evaluation import SplitEvaluation, read_scores


def evaluation_name(epoch: int) -> str:
    return f"val_epoch{epoch:02d}"


class Validated(NamedTuple):
    """A validated epoch, counted from 0. value: its sum of metrics; None without a metric of it."""

    epoch: int
    value: Optional[float]
    scores: dict[str, float]


def validated(folder: Path, epochs: int, metrics: Optional[str]) -> list[Validated]:
    """The validations among the first `epochs`. metrics: a sum, or None for no values."""
    value = MetricSum.parse(metrics).of if metrics else lambda scores: None
    pairs = ((epoch, read_scores(folder, evaluation_name(epoch))) for epoch in range(epochs))
    return [Validated(epoch, value(scores), scores) for epoch, scores in pairs if scores]


def history(folder: Path, epochs: int, metrics: str) -> list[float]:
    """The values of a sum of metrics in the first `epochs`. Epochs without a value are left out."""
    values = (validation.value for validation in validated(folder, epochs, metrics))
    return [value for value in values if value is not None]


def since_best(values: Sequence[float]) -> int:
    """The number of values after the highest value, or after the first of several highest."""
    return len(values) - 1 - values.index(max(values)) if values else 0


def reason_finished(config: Config, folder: Path, epochs: int) -> Optional[str]:
    """The reason why a run is over after `epochs` epochs. None if it goes on."""
    if epochs >= config.max_epoch:
        return f"{config.output_dir} has finished all of its {epochs} epochs"
    waited = since_best(history(folder, epochs, config.monitor))
    if config.early_stopping is not None and waited >= config.early_stopping:
        return (
            f"{config.output_dir} stopped early, after {epochs} epochs: {config.monitor} was best "
            f"{waited} validations ago, and early_stopping is {config.early_stopping}"
        )
    return None


def reason_unavailable(metrics: str, evaluation: SplitEvaluation) -> Optional[str]:
    """The reason why a sum of metrics cannot be computed. None if it can."""
    computed = {name for evaluator in evaluation.evaluators for name in evaluator.names}
    for name in MetricSum.parse(metrics).signs:
        if name not in computed:
            return f"metrics is {evaluation.config.metrics}, which does not include {name}"
        if name in evaluation.unavailable:
            return f"{name} cannot be computed: {evaluation.unavailable[name]}"
    return None


def check_monitor(config: Config, evaluation: SplitEvaluation) -> None:
    """Raise UserError if the run depends on metrics that will not be computed."""
    reason = config.monitors and reason_unavailable(config.monitor, evaluation)
    if reason:
        raise UserError(
            f"{config.monitors} depends on {config.monitor}, but {reason}; set monitor to other "
            f"metrics, or leave {config.monitors} at its default"
        )


def plateaus(values: Sequence[float], patience: int) -> int:
    """The number of plateaus, as torch's ReduceLROnPlateau counts them.

    A plateau is more than `patience` consecutive values that do not exceed the best value so far.
    After a plateau, the count of such values restarts.
    """
    best, waited, count = -math.inf, 0, 0
    for value in values:
        waited = 0 if value > best else waited + 1
        best = max(best, value)
        if waited > patience:
            count, waited = count + 1, 0
    return count


def is_done(trained: Config, scored: Config) -> bool:
    """Whether a run is trained and scored.

    trained: the configuration of training. scored: the configuration of evaluation, in which
    `pretrained` is the weights to evaluate.
    """
    return is_scored(scored) and is_trained(trained)


def is_trained(config: Config) -> bool:
    """Whether the run is over and was started from the same `pretrained`."""
    folder = working_folder(config.output_dir)
    epochs, record = checkpoints.of_epochs(folder), folder / "config.yaml"
    if not epochs or not record.exists():
        return False
    # The record has no secrets of addresses; `model_dump` has none either.
    if load_config(record).model_dump()["pretrained"] != config.model_dump()["pretrained"]:
        return False
    newest = int(epochs[-1].stem.rpartition("_")[2])
    return reason_finished(config, folder, newest + 1) is not None


def is_scored(config: Config, split: str = "test") -> bool:
    """Whether the split has been captioned and scored with the current best weights."""
    folder = working_folder(config.output_dir)
    scored = folder / "result" / split / "metrics.json"
    settings = scored.with_name("config.yaml")
    weights = folder / checkpoints.BEST
    if not all(path.exists() for path in (scored, settings, weights)):
        return False
    if scored.stat().st_mtime < weights.stat().st_mtime:
        return False
    return every_key(load_config(settings)) == every_key(config)
