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


class Validation(NamedTuple):
    """The scores of one epoch on the validation split.

    epoch: from 0. value: a sum of metrics, such as CIDEr + Bleu_4; None if one of the metrics is
    missing. scores: {name of a metric: value}.
    """

    epoch: int
    value: Optional[float]
    scores: dict[str, float]


def read_validations(folder: Path, epochs: int, metrics: Optional[str]) -> list[Validation]:
    """Return the validations among the first `epochs` epochs, in order.

    metrics: the sum to compute for `Validation.value`, such as "CIDEr + Bleu_4"; None for no value.
    """
    compute_value = MetricSum.parse(metrics).of if metrics else lambda scores: None
    pairs = ((epoch, read_scores(folder, evaluation_name(epoch))) for epoch in range(epochs))
    return [Validation(epoch, compute_value(scores), scores) for epoch, scores in pairs if scores]


def metric_values(folder: Path, epochs: int, metrics: str) -> list[float]:
    """Return the value of a sum of metrics for each of the first `epochs` epochs.

    Epochs without this value, such as epochs that were not validated, are left out.
    """
    validations = read_validations(folder, epochs, metrics)
    return [v.value for v in validations if v.value is not None]


def reason_finished(config: Config, folder: Path, epochs: int) -> Optional[str]:
    """Return why a run is over after `epochs` epochs; None if the run continues."""
    if epochs >= config.max_epoch:
        return f"{config.output_dir} has finished all of its {epochs} epochs"
    values = metric_values(folder, epochs, config.monitor)
    since_best = len(values) - 1 - values.index(max(values)) if values else 0
    if config.early_stopping is not None and since_best >= config.early_stopping:
        return (
            f"{config.output_dir} stopped early, after {epochs} epochs: {config.monitor} was best "
            f"{since_best} validations ago, and early_stopping is {config.early_stopping}"
        )
    return None


def reason_unavailable(metrics: str, evaluation: SplitEvaluation) -> Optional[str]:
    """Return why a sum of metrics cannot be computed; None if it can."""
    computed = {name for evaluator in evaluation.evaluators for name in evaluator.metric_names}
    for name in MetricSum.parse(metrics).signs:
        if name not in computed:
            return f"metrics is {evaluation.config.metrics}, which does not include {name}"
        if name in evaluation.unavailable_metrics:
            return f"{name} cannot be computed: {evaluation.unavailable_metrics[name]}"
    return None


def check_monitor(config: Config, evaluation: SplitEvaluation) -> None:
    """Raise UserError if a key depends on `monitor` and its metrics cannot be computed."""
    reason = config.monitors and reason_unavailable(config.monitor, evaluation)
    if reason:
        raise UserError(
            f"{config.monitors} depends on {config.monitor}, but {reason}; set monitor to other "
            f"metrics, or leave {config.monitors} at its default"
        )


def count_plateaus(values: Sequence[float], patience: int) -> int:
    """Return the number of plateaus, as torch's ReduceLROnPlateau counts them.

    A plateau is a sequence of `patience` + 1 consecutive values that do not exceed the best value
    so far. After a plateau, counting starts again at the next value.
    """
    best, waited, count = -math.inf, 0, 0
    for value in values:
        waited = 0 if value > best else waited + 1
        best = max(best, value)
        if waited > patience:
            count, waited = count + 1, 0
    return count


def is_trained(config: Config) -> bool:
    """Return whether the run of a configuration is over and started from its `pretrained`."""
    folder = working_folder(config.output_dir)
    paths, record = checkpoints.epoch_checkpoints(folder), folder / "config.yaml"
    if not paths or not record.exists():
        return False
    # Compare dumps, because config.yaml is a dump, too: `model_dump` removes secrets in addresses.
    if load_config(record).model_dump()["pretrained"] != config.model_dump()["pretrained"]:
        return False
    newest = int(paths[-1].stem.rpartition("_")[2])
    return reason_finished(config, folder, newest + 1) is not None


def is_scored(config: Config, split: str = "test", results: Optional[Path] = None) -> bool:
    """Return whether the split has been captioned and scored with the current best weights.

    results: the folder that contains the folder `result`; by default the run's folder.
    """
    folder = working_folder(config.output_dir)
    scores_file = (results or folder) / "result" / split / "metrics.json"
    config_file = scores_file.with_name("config.yaml")
    weights = folder / checkpoints.BEST
    if not all(path.exists() for path in (scores_file, config_file, weights)):
        return False
    if scores_file.stat().st_mtime < weights.stat().st_mtime:
        return False
    return every_key(load_config(config_file)) == every_key(config)
