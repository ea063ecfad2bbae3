"""The selected epoch of each run, and the validation scores of all epochs."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Callable, NamedTuple, Optional

from captioning.metrics.registry import metric_of
from captioning.report.runs import Run
from captioning.training.selection import in_words, shown_metrics


class Selected(NamedTuple):
    """The selected epoch of a run.

    words: the epoch and how it was selected. lines: (title, cells) of the value that selected the
    epoch, if any, and of each metric. cells: (epoch counted from 1, value, whether selected) of
    each validation.
    """

    run: Run
    words: str
    lines: list[tuple[str, list[tuple[int, str, bool]]]]


def selected_epochs(runs: Iterable[Run]) -> Iterator[Selected]:
    """The selected epoch of each run that recorded one."""
    for run in runs:
        if run.selected is None:
            continue
        names = shown_metrics(run.selected)
        lines = [(metric_of(name).title, _cells(run, name, _of_metric(name))) for name in names]
        if len(names) > 1 and any(each["value"] is not None for each in run.selected["epochs"]):
            lines.insert(0, (run.selected["select"], _cells(run, names[0], itemgetter("value"))))
        yield Selected(run, in_words(run.selected), lines)


def _of_metric(name: str) -> Callable[[dict[str, Any]], Optional[float]]:
    return lambda each: each["scores"].get(name)


def _cells(run: Run, like: str, value_of: Callable) -> list[tuple[int, str, bool]]:
    """The cells of a line. like: a metric; the values get its number of decimals."""
    cells = []
    for each in run.selected["epochs"]:
        value = value_of(each)
        text = "none" if value is None else f"{value:.{metric_of(like).decimals}f}"
        cells.append((each["epoch"] + 1, text, each["epoch"] == run.selected["epoch"]))
    return cells
