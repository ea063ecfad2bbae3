"""Selects the best epoch by the key `select`, and keeps its weights as checkpoint_best.pth.

The result is recorded in selected.json, in the run's folder:
{"select": "last" or metrics, "epoch": the epoch of checkpoint_best.pth, counted from 0,
"epochs": [{"epoch", "value" by `select`, "scores"}, ...], the validated epochs}.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.config import Config
from captioning.config.config import LAST
from captioning.config.objectives import trained_by
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.metrics.metric_sum import MetricSum
from captioning.metrics.registry import metric_of
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.training.split_evaluation import SplitEvaluation, read_scores
from captioning.training.validation_history import evaluation_name, why_not

RECORD = "selected.json"
BLIPS = "CIDEr + Bleu_4"
LENGTH = "cap_len"  # shown with the metrics, because CIDEr depends on the length


def check_select(config: Config, evaluation: SplitEvaluation) -> None:
    """Raise UserError if `select` names metrics that will not be computed."""
    if config.select not in (None, LAST) and (reason := why_not(config.select, evaluation)):
        raise UserError(f"select is {config.select}, but {reason}; name other metrics, or last")


def with_select(
    config: Config, checkpoint: Optional[Mapping[str, Any]], evaluation: SplitEvaluation
) -> Config:
    """Return the configuration with a value for `select`.

    A resumed run keeps its value; `checkpoint` is its checkpoint. A new run that trains only with
    MLE selects by BLIP's rule, and all others select the last epoch: CIDEr and BLEU punish the
    longer captions of SMILE.
    """
    select = config.select
    if select is None:
        blips_rule = BLIPS if "coco" in config.metrics else LAST
        default = blips_rule if trained_by(config) == ["mle"] else LAST
        # Older versions had no such key, and used BLIP's rule.
        select = checkpoint["config"].get("select", blips_rule) if checkpoint else default
        if select != LAST and (reason := why_not(select, evaluation)):
            log_line(f"the last epoch will be selected, not the best by {select}: {reason}")
            select = LAST
    return config.model_copy(update={"select": select})


class Validated(NamedTuple):
    """A validated epoch, counted from 0. value: by the metrics of `select`; None for "last"."""

    epoch: int
    value: Optional[float]
    scores: dict[str, float]


class Selection:
    """Selects an epoch of a run. Used only on rank 0. select: "last" or metrics."""

    def __init__(self, select: str, folder: Path):
        self.select, self.folder = select, folder
        self.metrics = None if select == LAST else MetricSum.parse(select)

    def epoch(self, epochs: int) -> int:
        """The best of the first `epochs`. Of equal epochs, or without values, the latest."""
        return _best(self.validated(epochs), epochs)

    def validated(self, epochs: int) -> list[Validated]:
        pairs = ((e, read_scores(self.folder, evaluation_name(e))) for e in range(epochs))
        metrics = self.metrics
        return [Validated(e, metrics and metrics.of(s), s) for e, s in pairs if s]

    def keep(self, epochs: int) -> Optional[str]:
        """Make the selected epoch's weights checkpoint_best.pth, and record the epoch.

        If these weights have been removed, checkpoint_best.pth does not change. Returns a line for
        the log, or None if nothing has changed. Raises UserError.
        """
        validated = self.validated(epochs)
        newest, selected = epochs - 1, _best(validated, epochs)
        held, line = held_epoch(self.folder), None
        available = selected in (newest, held) or checkpoints.weights_of(self.folder, selected)
        if not available:
            held = newest if held is None else held
            line = (
                f"epoch {selected + 1} is best by select: {self.select}, but its weights were not "
                f"kept (keep_checkpoints); {checkpoints.BEST} has the weights of epoch {held + 1}"
            )
            selected = held
        elif selected != held:
            line = (
                f"{checkpoints.BEST} now has the weights of epoch {selected + 1}, by select: "
                f"{self.select}"
            )
        if selected != held or selected == newest:
            checkpoints.keep_as_best(self.folder, selected)
        entries = [each._asdict() for each in validated]
        record = {"select": self.select, "epoch": selected, "epochs": entries}
        if record != read_record(self.folder):
            write_json(record, self.folder / RECORD)
        return line


def _best(validated: list[Validated], epochs: int) -> int:
    valued = [each for each in validated if each.value is not None]
    best = max(valued, key=lambda each: (each.value, each.epoch), default=None)
    return epochs - 1 if best is None else best.epoch


def held_epoch(folder: Path) -> Optional[int]:
    """The epoch of checkpoint_best.pth. None if there is no such file or it cannot be read."""
    best = checkpoints.best(folder)
    if best is None:
        return None
    if record := read_record(folder):
        return record["epoch"]
    try:
        return checkpoints.read(best)["epoch"]
    except UserError:
        return None


def read_record(folder: Path) -> Optional[dict[str, Any]]:
    """The content of selected.json. None if it is invalid or, as in older versions, missing."""
    try:
        record = read_json(folder / RECORD)
        if record["select"] != LAST:
            MetricSum.parse(record["select"])
        for each in record["epochs"]:
            Validated(**each).scores.items()
        return record if isinstance(record["epoch"], int) else None
    except (UserError, ValueError, TypeError, KeyError, AttributeError):
        return None


def shown_metrics(record: Mapping[str, Any]) -> list[str]:
    """The metrics to show: the metrics of `select` (for "last", BLIP's) and the length."""
    metrics = BLIPS if record["select"] == LAST else record["select"]
    names = dict.fromkeys([*MetricSum.parse(metrics).signs, LENGTH])
    return [n for n in names if any(n in each["scores"] for each in record["epochs"])]


def in_words(record: Mapping[str, Any]) -> str:
    """ "epoch 3, the last" or "epoch 3, by CIDEr + Bleu_4"."""
    by = "the last" if record["select"] == LAST else f"by {record['select']}"
    return f"epoch {record['epoch'] + 1}, {by}"


def summary(folder: Path) -> Iterator[str]:
    """Lines on the selected epoch, and the scores of every validated epoch."""
    record = read_record(folder)
    if record is None:
        return
    yield f"selected: {in_words(record)}, kept as {folder / checkpoints.BEST}"
    for each in record["epochs"]:
        cells = [] if each["value"] is None else [f"{each['value']:.3f}"]
        for name in shown_metrics(record):
            column, score = metric_of(name), each["scores"].get(name)
            value = "none" if score is None else f"{score:.{column.decimals}f}"
            cells.append(f"{column.title} {value}")
        chosen = "  (selected)" if each["epoch"] == record["epoch"] else ""
        yield f"  epoch {each['epoch'] + 1}: {', '.join(cells) or 'no scores'}{chosen}"
