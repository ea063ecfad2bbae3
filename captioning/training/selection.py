"""Which epoch of a run is captioned with and scored: `select`, and the record of what it found.

selected.json, in the run's folder: {"select": "last" or metrics, "epoch": whose weights
checkpoint_best.pth are, from 0 on, "epochs": [{"epoch", "value" by `select`, "scores"}, ...]} of
the epochs that were validated.
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
from captioning.metrics.registry import all_metrics
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from captioning.training.split_evaluation import SplitEvaluation, read_scores
from captioning.training.validation_history import evaluation_name, why_not

RECORD = "selected.json"
BLIPS = "CIDEr + Bleu_4"
LENGTH = "cap_len"  # which tells beside CIDEr what an epoch has won or lost


def check_select(config: Config, evaluation: SplitEvaluation) -> None:
    """Raise UserError where `select` names metrics that cannot be had."""
    if config.select not in (None, LAST) and (reason := why_not(config.select, evaluation)):
        raise UserError(f"select is {config.select}, but {reason}; name other metrics, or last")


def with_select(
    config: Config, checkpoint: Optional[Mapping[str, Any]], evaluation: SplitEvaluation
) -> Config:
    """The configuration with `select` said. checkpoint: that of the run that goes on, if one does.

    Without a value a run goes on as it has begun. A new one that is trained with MLE alone has
    BLIP's rule, any other the last epoch: CIDEr and BLEU punish what SMILE is for.
    """
    select = config.select
    if select is None:
        blips = BLIPS if "coco" in config.metrics else LAST
        of_new = blips if trained_by(config) == ["mle"] else LAST
        # Older versions had no key, and knew one rule.
        select = checkpoint["config"].get("select", blips) if checkpoint else of_new
        if select != LAST and (reason := why_not(select, evaluation)):
            say(f"the last epoch will be selected, not the best by {select}: {reason}")
            select = LAST
    return config.model_copy(update={"select": select})


class Validated(NamedTuple):
    """An epoch, from 0 on; what it has by `select`, if anything; its scores."""

    epoch: int
    value: Optional[float]
    scores: dict[str, float]


class Selection:
    """The epoch of a run that `select`, "last" or metrics, prefers. Rank 0 alone asks."""

    def __init__(self, select: str, folder: Path):
        self.select, self.folder = select, folder
        self.metrics = None if select == LAST else MetricSum.parse(select)

    def epoch(self, epochs: int) -> int:
        """Of so many, the best by its metrics; of equals, and without any, the latest."""
        return _best(self.validated(epochs), epochs)

    def validated(self, epochs: int) -> list[Validated]:
        found = ((e, read_scores(self.folder, evaluation_name(e))) for e in range(epochs))
        by = self.metrics
        return [Validated(e, by and by.of(scores), scores) for e, scores in found if scores]

    def keep(self, epochs: int) -> Optional[str]:
        """Let checkpoint_best.pth be the selected epoch's, and record it; a line on what changed.

        Another `select` may prefer an epoch whose weights are there no more: then nothing changes.
        Raises UserError.
        """
        validated = self.validated(epochs)
        newest, selected = epochs - 1, _best(validated, epochs)
        held, line = held_epoch(self.folder), None
        there = selected in (newest, held) or checkpoints.weights_of(self.folder, selected)
        if not there:
            held = newest if held is None else held
            line = (
                f"epoch {selected + 1} is best by select: {self.select}, but its weights were not "
                f"kept (keep_checkpoints); {checkpoints.BEST} is that of epoch {held + 1}"
            )
            selected = held
        elif selected != held:
            line = f"{checkpoints.BEST} is of epoch {selected + 1} now, by select: {self.select}"
        if selected != held or selected == newest:
            checkpoints.keep_as_best(self.folder, selected)
        of_epochs = [each._asdict() for each in validated]
        record = {"select": self.select, "epoch": selected, "epochs": of_epochs}
        if record != read_record(self.folder):
            write_json(record, self.folder / RECORD)
        return line


def _best(validated: list[Validated], epochs: int) -> int:
    valued = [each for each in validated if each.value is not None]
    best = max(valued, key=lambda each: (each.value, each.epoch), default=None)
    return epochs - 1 if best is None else best.epoch


def held_epoch(folder: Path) -> Optional[int]:
    """The epoch whose weights checkpoint_best.pth are; None where they cannot be read."""
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
    """What selected.json holds; None where there is none, as of older versions, or another file."""
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
    """Those that tell of the choice: its own, or where there are none BLIP's, and the length."""
    metrics = BLIPS if record["select"] == LAST else record["select"]
    names = dict.fromkeys([*MetricSum.parse(metrics).signs, LENGTH])
    return [n for n in names if any(n in each["scores"] for each in record["epochs"])]


def in_words(record: Mapping[str, Any]) -> str:
    """ "epoch 3, the last" or "epoch 3, by CIDEr + Bleu_4"."""
    by = "the last" if record["select"] == LAST else f"by {record['select']}"
    return f"epoch {record['epoch'] + 1}, {by}"


def told(folder: Path) -> Iterator[str]:
    """Lines on what was selected, by what, and what every validated epoch had."""
    record = read_record(folder)
    if record is None:
        return
    yield f"selected: {in_words(record)}, kept as {folder / checkpoints.BEST}"
    for each in record["epochs"]:
        cells = [] if each["value"] is None else [f"{each['value']:.3f}"]
        for name in shown_metrics(record):
            column, score = all_metrics()[name], each["scores"].get(name)
            value = "none" if score is None else f"{score:.{column.decimals}f}"
            cells.append(f"{column.title} {value}")
        chosen = "  (selected)" if each["epoch"] == record["epoch"] else ""
        yield f"  epoch {each['epoch'] + 1}: {', '.join(cells) or 'no scores'}{chosen}"
