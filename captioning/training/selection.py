"""Tells from a run's validations which epoch is selected, and whether the run is over."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.config import Config, load_config
from captioning.config.config import LAST
from captioning.files.reading import read_json
from captioning.metrics.base import metric_of
from captioning.metrics.metric_sum import MetricSum
from captioning.models import checkpoints
from captioning.training.output_folder import working_folder

SELECTED = "selected.json"  # see `Selection`
BLIP_METRICS = "CIDEr + Bleu_4"
LENGTH_METRIC = "cap_len"  # caption length; shown with the metrics, because CIDEr depends on it
Validations = Mapping[int, Mapping[str, float]]  # {epoch, from 0: {metric: value}}, in order


def values_of(validations: Validations, metrics: str) -> dict[int, float]:
    """Return {epoch: the sum `metrics`} of the epochs that have it.

    metrics: such as "CIDEr + Bleu_4".
    """
    compute = MetricSum.parse(metrics).compute
    values = {epoch: compute(scores) for epoch, scores in validations.items()}
    return {epoch: value for epoch, value in values.items() if value is not None}


def reason_finished(config: Config, validations: Validations, epochs: int) -> Optional[str]:
    """Return why a run is over after `epochs` epochs; None if the run continues."""
    if epochs >= config.max_epoch:
        return f"{config.output_dir} has finished all of its {epochs} epochs"
    values = list(values_of(validations, config.monitor).values())
    since_best = len(values) - 1 - values.index(max(values)) if values else 0
    if config.early_stopping is not None and since_best >= config.early_stopping:
        return (
            f"{config.output_dir} stopped early, after {epochs} epochs: {config.monitor} was best "
            f"{since_best} validations ago, and early_stopping is {config.early_stopping}"
        )
    return None


def count_plateaus(config: Config, validations: Validations) -> int:
    """Return the number of plateaus of `monitor`, as torch's ReduceLROnPlateau counts them.

    A plateau is a sequence of `lr_patience` + 1 consecutive values that do not exceed the best
    value so far. After a plateau, counting starts again at the next value.
    """
    best, waited, count = -math.inf, 0, 0
    for value in values_of(validations, config.monitor).values():
        waited = 0 if value > best else waited + 1
        best = max(best, value)
        if waited > config.lr_patience:
            count, waited = count + 1, 0
    return count


class Selection(NamedTuple):
    """The content of selected.json in the run's folder.

    - select: "last", or the metrics by which the best epoch was selected
    - epoch: the epoch whose weights checkpoint_best.pth has, counted from 0
    - epochs: {"epoch", "value", "scores"} of the validated epochs, in order. scores: {metric:
      value}. value: the sum `select` of them; None for "last", or if a metric is missing
    """

    select: str
    epoch: int
    epochs: list[dict[str, Any]]


def read_selection(folder: Path) -> Optional[Selection]:
    """Return the content of selected.json; None without this file. Raises UserError."""
    path = folder / SELECTED
    return Selection(**read_json(path)) if path.exists() else None


def describe_selection(selection: Selection) -> str:
    """Return a text such as "epoch 3, the last" or "epoch 3, by CIDEr + Bleu_4"."""
    reason = "the last" if selection.select == LAST else f"by {selection.select}"
    return f"epoch {selection.epoch + 1}, {reason}"


def summary(folder: Path) -> Iterator[str]:
    """Yield log lines: the selected epoch, then the scores of each validated epoch.

    The scores are those that `select` names (for "last": BLIP_METRICS), and LENGTH_METRIC.
    """
    selection = read_selection(folder)
    if selection is None:
        return
    yield f"selected: {describe_selection(selection)}, kept as {folder / checkpoints.BEST}"
    metrics = BLIP_METRICS if selection.select == LAST else selection.select
    shown = [metric_of(n) for n in dict.fromkeys([*MetricSum.parse(metrics).signs, LENGTH_METRIC])]
    for epoch in selection.epochs:
        cells = [] if epoch["value"] is None else [f"{epoch['value']:.3f}"]
        for metric in shown:
            if (score := epoch["scores"].get(metric.name)) is not None:
                cells.append(f"{metric.title} {score:.{metric.decimals}f}")
        chosen = "  (selected)" if epoch["epoch"] == selection.epoch else ""
        yield f"  epoch {epoch['epoch'] + 1}: {', '.join(cells) or 'no scores'}{chosen}"


def is_trained(config: Config) -> bool:
    """Return whether the run of a configuration is over and started from its `pretrained`."""
    folder = working_folder(config.output_dir)
    selection, record = read_selection(folder), folder / "config.yaml"
    if not selection or not record.exists():
        return False
    # Compare dumps, because config.yaml is a dump, too: `model_dump` removes secrets in addresses.
    if load_config(record).model_dump()["pretrained"] != config.model_dump()["pretrained"]:
        return False
    validations = {entry["epoch"]: entry["scores"] for entry in selection.epochs}
    return reason_finished(config, validations, max(validations, default=-1) + 1) is not None


def is_scored(config: Config) -> bool:
    """Return whether the test split has been captioned and scored with the current best weights."""
    folder = working_folder(config.output_dir)
    scores_file, weights = folder / "result/test/metrics.json", folder / checkpoints.BEST
    config_file = scores_file.with_name("config.yaml")
    if not all(path.exists() for path in (scores_file, config_file, weights)):
        return False
    if scores_file.stat().st_mtime < weights.stat().st_mtime:
        return False
    return load_config(config_file).model_dump() == config.model_dump()
