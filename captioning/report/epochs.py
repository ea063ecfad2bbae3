"""The selected epoch of each run, and the validation scores of all epochs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from captioning.metrics.registry import metric_of
from captioning.report.runs import Run
from captioning.training.selection import describe_selection, shown_metrics


class SelectedEpoch(NamedTuple):
    """The selected epoch of a run, and the validation scores that selected it.

    description: the epoch and how it was selected. lines: (title, cells) of each shown metric;
    before them, if several metrics are shown, of the value by which epochs were compared. cells:
    (epoch counted from 1, value as text, whether this epoch was selected) of each validation.
    """

    run: Run
    description: str
    lines: list[tuple[str, list[tuple[int, str, bool]]]]


def selected_epochs(runs: Iterable[Run]) -> Iterator[SelectedEpoch]:
    """Yield the selected epoch of each run that recorded it."""
    for run in runs:
        if run.selected is None:
            continue
        names, epochs = shown_metrics(run.selected), run.selected["epochs"]
        lines = []
        for name in names:
            values = [epoch["scores"].get(name) for epoch in epochs]
            lines.append((metric_of(name).title, _cells(run, name, values)))
        values = [epoch["value"] for epoch in epochs]
        if len(names) > 1 and any(value is not None for value in values):
            lines.insert(0, (run.selected["select"], _cells(run, names[0], values)))
        yield SelectedEpoch(run, describe_selection(run.selected), lines)


def _cells(run: Run, metric: str, values: Sequence[Optional[float]]) -> list[tuple[int, str, bool]]:
    """Return the cells of a line. The values have the decimals of `metric`."""
    cells = []
    for epoch, value in zip(run.selected["epochs"], values):
        text = "none" if value is None else f"{value:.{metric_of(metric).decimals}f}"
        cells.append((epoch["epoch"] + 1, text, epoch["epoch"] == run.selected["epoch"]))
    return cells
