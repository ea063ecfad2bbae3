"""The selected epoch of each run, and the validation scores of all epochs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from captioning.metrics.registry import metric_of
from captioning.report.runs import Run
from captioning.training.selection import describe_selection, shown_metrics


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
        names, epochs = shown_metrics(run.selected), run.selected["epochs"]
        lines = []
        for name in names:
            values = [each["scores"].get(name) for each in epochs]
            lines.append((metric_of(name).title, _cells(run, name, values)))
        values = [each["value"] for each in epochs]
        if len(names) > 1 and any(value is not None for value in values):
            lines.insert(0, (run.selected["select"], _cells(run, names[0], values)))
        yield Selected(run, describe_selection(run.selected), lines)


def _cells(run: Run, like: str, values: Sequence[Optional[float]]) -> list[tuple[int, str, bool]]:
    """The cells of a line. like: a metric; the values get its number of decimals."""
    cells = []
    for each, value in zip(run.selected["epochs"], values):
        text = "none" if value is None else f"{value:.{metric_of(like).decimals}f}"
        cells.append((each["epoch"] + 1, text, each["epoch"] == run.selected["epoch"]))
    return cells
