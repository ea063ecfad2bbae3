"""Selects the best epoch by the key `select`, and keeps its weights as checkpoint_best.pth."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.config import Config
from captioning.config.config import LAST
from captioning.config.objectives import training_terms
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.metrics.base import metric_of
from captioning.metrics.metric_sum import MetricSum
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.training.split_evaluation import SplitEvaluation
from captioning.training.stored_run import SELECTED
from captioning.training.validation_history import read_validations, reason_unavailable

BLIP_METRICS = "CIDEr + Bleu_4"
LENGTH_METRIC = "cap_len"  # caption length; shown with the metrics, because CIDEr depends on it


class Selection(NamedTuple):
    """The content of selected.json in the run's folder.

    - select: "last", or the metrics by which the best epoch was selected
    - epoch: the epoch whose weights checkpoint_best.pth has, counted from 0
    - epochs: the validated epochs, a list of {"epoch", "value", "scores"}; value is the sum of the
      metrics in `select`
    """

    select: str
    epoch: int
    epochs: list[dict[str, Any]]


def check_select(config: Config, evaluation: SplitEvaluation) -> None:
    """Raise UserError if `select` names metrics that will not be computed."""
    if config.select in (None, LAST):
        return
    if reason := reason_unavailable(config.select, evaluation):
        raise UserError(f"select is {config.select}, but {reason}; name other metrics, or last")


def resolve_select(
    config: Config, checkpoint: Optional[Mapping[str, Any]], evaluation: SplitEvaluation
) -> Config:
    """Return the configuration with a value for `select`, which is chosen here if it is None.

    A resumed run keeps the value in its checkpoint. A new run that trains only with MLE selects the
    best epoch by BLIP_METRICS. Any other run selects the last epoch, because CIDEr and BLEU punish
    the longer captions of SMILE. If the metrics cannot be computed, the last epoch is selected.
    checkpoint: the content of the checkpoint to resume from, or None.
    """
    select = config.select
    if select is None:
        by_blips_rule = "coco" in config.metrics and training_terms(config) == ["mle"]
        saved_select = checkpoint["config"].get("select") if checkpoint else None
        select = saved_select or (BLIP_METRICS if by_blips_rule else LAST)
        if select != LAST and (reason := reason_unavailable(select, evaluation)):
            log_line(f"the last epoch will be selected, not the best by {select}: {reason}")
            select = LAST
    return config.model_copy(update={"select": select})


def keep_selected(select: str, folder: Path, epochs: int) -> Optional[str]:
    """Make the selected epoch's weights checkpoint_best.pth, and record the epoch.

    Only called on rank 0. select: "last" or metrics. epochs: the number of finished epochs. Selects
    the epoch with the highest value: the latest of several such epochs, or the last epoch if none
    has a value. If the weights of this epoch have been removed, the previous choice stays, or the
    newest epoch is taken. Returns a line for the log if the choice changed or could not be made.
    Raises UserError.
    """
    validations = read_validations(folder, epochs, None if select == LAST else select)
    newest_epoch = epochs - 1
    previous = best_epoch(folder)
    message = None
    candidates = [v for v in validations if v.value is not None]
    best = max(candidates, key=lambda v: (v.value, v.epoch), default=None)
    selected = newest_epoch if best is None else best.epoch
    if selected not in (newest_epoch, previous) and not checkpoints.weights_of(folder, selected):
        fallback = newest_epoch if previous is None else previous
        message = (
            f"epoch {selected + 1} is best by select: {select}, but its weights were not kept "
            f"(keep_checkpoints); {checkpoints.BEST} has the weights of epoch {fallback + 1}"
        )
        selected = fallback
    elif selected != previous:
        message = (
            f"{checkpoints.BEST} now has the weights of epoch {selected + 1}, by select: {select}"
        )
    if selected != previous or selected == newest_epoch:
        checkpoints.keep_as_best(folder, selected)
    selection = Selection(select, selected, [v._asdict() for v in validations])
    if selection != read_selection(folder):
        write_json(selection._asdict(), folder / SELECTED)
    return message


def best_epoch(folder: Path) -> Optional[int]:
    """Return the epoch of checkpoint_best.pth; None without this file or selected.json."""
    selection = read_selection(folder)
    return selection.epoch if selection and checkpoints.best(folder) else None


def read_selection(folder: Path) -> Optional[Selection]:
    """Return the content of selected.json; None without this file. Raises UserError."""
    path = folder / SELECTED
    try:
        return Selection(**read_json(path)) if path.exists() else None
    except TypeError as error:
        keys = ", ".join(Selection._fields)
        raise UserError(f"{path} must have exactly the keys {keys}; remove the file") from error


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
