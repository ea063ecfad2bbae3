"""Which epoch of each run was selected, and the validation scores of all epochs."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Callable, NamedTuple, Optional

from captioning.metrics.registry import metric_of
from captioning.report.runs import Run
from captioning.training.selection import in_words, shown_metrics


class Selected(NamedTuple):
    """words: the epoch, and how it was selected. lines: for the value that selected it, if any, and
    for each metric: title and (epoch from 1 on, value, selected) of each validation."""

    run: Run
    words: str
    lines: list[tuple[str, list[tuple[int, str, bool]]]]


def selected_epochs(runs: Iterable[Run]) -> Iterator[Selected]:
    """For the runs that recorded it."""
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
    """like: the metric whose number of decimals is used."""
    cells = []
    for each in run.selected["epochs"]:
        value = value_of(each)
        text = "none" if value is None else f"{value:.{metric_of(like).decimals}f}"
        cells.append((each["epoch"] + 1, text, each["epoch"] == run.selected["epoch"]))
    return cells
