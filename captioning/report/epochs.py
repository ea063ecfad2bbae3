"""The selected epoch of each run, and the validation scores of all epochs."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

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
        metrics, epochs = map(metric_of, shown_metrics(run.selected)), run.selected["epochs"]
        rows = [
            (metric, [epoch["scores"].get(metric.name) for epoch in epochs]) for metric in metrics
        ]
        values = [epoch["value"] for epoch in epochs]
        if len(rows) > 1 and any(value is not None for value in values):
            rows.insert(0, (rows[0][0]._replace(title=run.selected["select"]), values))
        lines = []
        for metric, values in rows:
            cells = []
            for epoch, value in zip(epochs, values):
                text = "none" if value is None else f"{value:.{metric.decimals}f}"
                cells.append((epoch["epoch"] + 1, text, epoch["epoch"] == run.selected["epoch"]))
            lines.append((metric.title, cells))
        yield SelectedEpoch(run, describe_selection(run.selected), lines)
