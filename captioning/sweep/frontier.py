"""Draws a sweep's figure of accuracy against descriptiveness, and formats the sweep's table."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from captioning.report import plane
from captioning.report.comparison import Row
from captioning.report.comparison_table import rows_to_markdown, select_columns
from captioning.report.figures import INK, assign_styles, figure_context, save_figure

_WIDE, _NARROW, _HEIGHT = 10.4, 4.6, 3.7  # inches
_BACKGROUND = "#9aa5b1"


class Entry(NamedTuple):
    """A row of the table, which is also a point of the figure.

    weight: MLE's share in a mixture of MLE and SMILE, from 0 to 1; None for other objectives and
    for humans.
    """

    row: Row
    weight: Optional[float] = None

    @property
    def is_mixture(self) -> bool:
        """Whether both MLE and SMILE have a positive weight."""
        return self.weight is not None and 0 < self.weight < 1

    @property
    def short_label(self) -> str:
        """The name in the figure: the weight of MLE for a mixture, otherwise the row's label."""
        return f"{self.weight:g}" if self.is_mixture else self.row.label


def draw_frontier(entries: Sequence[Entry], path: Path) -> Optional[str]:
    """Write the figure in the format of the path's suffix; return its alt text.

    If fewer than two entries have the metrics of both axes, no file is written, and None is
    returned. Error bars show 95 % intervals. A line joins the mixtures, from SMILE alone to MLE
    alone. If there are entries of other objectives, a second panel shows them, with this line in
    grey and a dotted line along the Pareto front of all entries but humans.
    """
    axes = plane.choose_axes([entry.row for entry in entries])
    if axes is None:
        return None
    entries = [entry for entry in entries if plane.has_both(entry.row, axes)]
    mixtures = sorted((e for e in entries if e.weight is not None), key=lambda e: e.weight)
    humans = [entry for entry in entries if entry.row.kind == "humans"]
    others = [entry for entry in entries if entry.weight is None and entry not in humans]
    with figure_context():
        figure = Figure(figsize=(_WIDE if others else _NARROW, _HEIGHT), layout="constrained")
        mixture_ax, *other_axes = figure.subplots(1, 2 if others else 1, squeeze=False)[0]
        _join(mixture_ax, axes, mixtures, assign_styles(["mixture"])[0].colour)
        points = _draw_points(mixture_ax, axes, [*humans, *mixtures])
        mixture_ax.set_title("Mixtures, by the weight of MLE")
        plane.label_axes(mixture_ax, axes)
        for ax in other_axes:
            pure = [entry for entry in mixtures if entry.weight in (0, 1)]
            _join(ax, axes, mixtures, _BACKGROUND)
            best = pareto_front([*mixtures, *others], axes)
            _join(ax, axes, best, INK, linestyle=":", label="frontier of all")
            # The first panel also shows the points of MLE and SMILE.
            points += _draw_points(ax, axes, [*pure, *others])[len(pure) :]
            ax.set_title("Other objectives, the line behind them")
            plane.label_axes(ax, axes)
            handles, names = ax.get_legend_handles_labels()
            figure.legend(handles, names, loc="outside right center")
        plane.label_points(figure, mixture_ax, points[: len(humans) + len(mixtures)])
        save_figure(figure, path)
    return plane.describe(axes, points)


def markdown_table(entries: Sequence[Entry]) -> str:
    """Return a Markdown table with a line per entry and 95 % intervals.

    The columns are the metrics with `in_sweeps` that at least one entry has.
    """
    rows = [entry.row for entry in entries]
    columns = [column for column in select_columns(rows) if column.in_sweeps]
    return rows_to_markdown(columns, rows)


def pareto_front(entries: Sequence[Entry], axes: plane.AxisPair) -> list[Entry]:
    """Return the Pareto-optimal entries, from left to right in the figure.

    An entry is Pareto-optimal if no other position is at least as good on both axes. On both,
    larger positions are better.
    """

    def position(entry):
        return coordinates(entry.row, axes)

    def is_dominated(x, y):
        others = map(position, entries)
        return any(a >= x and b >= y and (a, b) != (x, y) for a, b in others)

    return sorted((e for e in entries if not is_dominated(*position(e))), key=position)


def coordinates(row: Row, axes: plane.AxisPair) -> tuple[float, float]:
    """Return the position (x, y) of a row that has the metrics of both axes."""
    x, y = (axis.position(row.metrics[axis.metric].value) for axis in axes)
    return x, y


def _join(ax: Axes, axes: plane.AxisPair, entries: Sequence[Entry], colour: str, **style: str):
    """Draw a line through the entries, in the order given."""
    points = [coordinates(entry.row, axes) for entry in entries]
    x, y = [x for x, _ in points], [y for _, y in points]
    ax.plot(x, y, color=colour, linewidth=1.2, zorder=1, **style)


def _draw_points(ax: Axes, axes: plane.AxisPair, entries: Sequence[Entry]) -> list[plane.Point]:
    """Draw the entries in the report's styles. All mixtures have the same style."""
    other_styles = iter(
        assign_styles([entry.row.kind for entry in entries if not entry.is_mixture])
    )
    points = []
    for entry in entries:
        style = assign_styles(["mixture"])[0] if entry.is_mixture else next(other_styles)
        points.append(plane.draw_point(ax, axes, entry.row, style, entry.short_label))
    return points
