"""Reads from a run's folder how epochs scored, which is selected, and whether the run is over."""

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.config import Config, every_key, load_config
from captioning.config.config import LAST
from captioning.files.reading import read_json
from captioning.metrics.base import metric_of
from captioning.metrics.metric_sum import MetricSum
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.training.output_folder import SELECTED, working_folder

BLIP_METRICS = "CIDEr + Bleu_4"
LENGTH_METRIC = "cap_len"  # caption length; shown with the metrics, because CIDEr depends on it


def evaluation_name(epoch: int) -> str:
    return f"val_epoch{epoch:02d}"


def read_scores(folder: Path, name: str) -> Optional[dict[str, float]]:
    """Return {metric: value} in result/NAME/ of a run's folder; None if it has no scores."""
    path = folder / "result" / name / "metrics.json"
    if not path.exists():
        return None
    return {metric: entry["value"] for metric, entry in read_json(path)["metrics"].items()}


def remove_scores(folder: Path, name: str) -> None:
    shutil.rmtree(folder / "result" / name, ignore_errors=True)


def read_validations(folder: Path, epochs: int, metrics: Optional[str]) -> list[dict[str, Any]]:
    """Return {"epoch", "value", "scores"} of the validations among the first epochs, in order.

    epoch: from 0. scores: {metric: value}. value: the sum `metrics`, such as "CIDEr + Bleu_4"; None
    if one of its metrics is missing, or if `metrics` is None.
    """
    value_of = MetricSum.parse(metrics).compute if metrics else lambda scores: None
    pairs = ((epoch, read_scores(folder, evaluation_name(epoch))) for epoch in range(epochs))
    return [{"epoch": n, "value": value_of(each), "scores": each} for n, each in pairs if each]


def metric_values(folder: Path, epochs: int, metrics: str) -> list[float]:
    """Return the values of a sum of metrics in those of the first `epochs` epochs that have it."""
    values = [validation["value"] for validation in read_validations(folder, epochs, metrics)]
    return [value for value in values if value is not None]


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


class Selection(NamedTuple):
    """The content of selected.json in the run's folder.

    - select: "last", or the metrics by which the best epoch was selected
    - epoch: the epoch whose weights checkpoint_best.pth has, counted from 0
    - epochs: the validated epochs, see `read_validations`
    """

    select: str
    epoch: int
    epochs: list[dict[str, Any]]


def read_selection(folder: Path) -> Optional[Selection]:
    """Return the content of selected.json; None without this file. Raises UserError."""
    path = folder / SELECTED
    try:
        return Selection(**read_json(path)) if path.exists() else None
    except TypeError as error:
        keys = ", ".join(Selection._fields)
        raise UserError(f"{path} must have exactly the keys {keys}; remove the file") from error


def best_epoch(folder: Path) -> Optional[int]:
    """Return the epoch of checkpoint_best.pth; None without this file or selected.json."""
    selection = read_selection(folder)
    return selection.epoch if selection and checkpoints.best(folder) else None


def shown_metrics(selection: Selection) -> list[str]:
    """Return the metrics to show: those in `select` (for "last": BLIP_METRICS), and LENGTH_METRIC.

    Metrics without a score are left out.
    """
    metrics = BLIP_METRICS if selection.select == LAST else selection.select
    names = dict.fromkeys([*MetricSum.parse(metrics).signs, LENGTH_METRIC])
    return [n for n in names if any(n in epoch["scores"] for epoch in selection.epochs)]


def describe_selection(selection: Selection) -> str:
    """Return a text such as "epoch 3, the last" or "epoch 3, by CIDEr + Bleu_4"."""
    reason = "the last" if selection.select == LAST else f"by {selection.select}"
    return f"epoch {selection.epoch + 1}, {reason}"


def summary(folder: Path) -> Iterator[str]:
    """Yield log lines: the selected epoch, then the scores of each validated epoch."""
    selection = read_selection(folder)
    if selection is None:
        return
    yield f"selected: {describe_selection(selection)}, kept as {folder / checkpoints.BEST}"
    for epoch in selection.epochs:
        cells = [] if epoch["value"] is None else [f"{epoch['value']:.3f}"]
        for name in shown_metrics(selection):
            column, score = metric_of(name), epoch["scores"].get(name)
            value = "none" if score is None else f"{score:.{column.decimals}f}"
            cells.append(f"{column.title} {value}")
        chosen = "  (selected)" if epoch["epoch"] == selection.epoch else ""
        yield f"  epoch {epoch['epoch'] + 1}: {', '.join(cells) or 'no scores'}{chosen}"


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


def is_scored(config: Config) -> bool:
    """Return whether the test split has been captioned and scored with the current best weights."""
    folder = working_folder(config.output_dir)
    scores_file, weights = folder / "result/test/metrics.json", folder / checkpoints.BEST
    config_file = scores_file.with_name("config.yaml")
    if not all(path.exists() for path in (scores_file, config_file, weights)):
        return False
    if scores_file.stat().st_mtime < weights.stat().st_mtime:
        return False
    return every_key(load_config(config_file)) == every_key(config)
