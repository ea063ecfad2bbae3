"""Draws the figure of accuracy against descriptiveness, with one point per row."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Optional

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Row
from captioning.report.figures import (
    FAINT,
    INK,
    Style,
    add_legend,
    assign_styles,
    figure_context,
    new_figure,
    to_svg,
)


class Axis(NamedTuple):
    """An axis of the figure. A metric's value is shown at the position offset + factor * value."""

    metric: str
    label: str
    factor: float = 1.0
    offset: float = 0.0

    def position(self, value: float) -> float:
        return self.offset + self.factor * value

    def convert(self, metric: Estimate) -> tuple[float, Optional[tuple[float, float]]]:
        """Return a score's position on this axis, and the lengths (below, above) of its error bar.

        The lengths are None if the score has no interval.
        """
        value = self.position(metric.value)
        if metric.low is None or metric.high is None:
            return value, None
        ends = self.position(metric.low), self.position(metric.high)
        return value, (max(value - min(ends), 0.0), max(max(ends) - value, 0.0))


class AxisPair(NamedTuple):
    horizontal: Axis
    vertical: Axis


class Point(NamedTuple):
    """A row's position and label.

    x_error, y_error: the lengths (below, above) of the error bars; None without an interval.
    """

    x: float
    y: float
    label: str
    x_error: Optional[tuple[float, float]] = None
    y_error: Optional[tuple[float, float]] = None


# The candidates for the horizontal and the vertical axis, in order of preference.
DESCRIPTIVE = (
    Axis("true_facts", "true facts a caption"),
    Axis("cap_len", "words a caption"),
    Axis("lex_div", "distinct words", factor=1000.0),
)
ACCURATE = (
    Axis("wrong_facts", "stated facts that are right (%)", factor=-1.0, offset=100.0),
    Axis("CHAIRi", "named objects that are there (%)", factor=-1.0, offset=100.0),
    Axis("CLIPScore", "CLIPScore"),
    Axis("CIDEr", "CIDEr"),
)
# Candidate offsets (x, y) of a label from its marker, in typographic points, best first.
OFFSETS = ((9, 8), (9, -8), (-9, 8), (-9, -8), (0, 14), (0, -14), (12, 0), (-12, 0))


def draw_plane(
    rows: Sequence[Row], lines: Mapping[str, Sequence[Row]] = MappingProxyType({})
) -> Optional[Markup]:
    """Return the figure as SVG; None if fewer than two rows have the metrics of both axes.

    lines: {name in the legend: rows that a line joins, in this order}
    """
    axes = choose_axes(rows)
    if axes is None:
        return None
    rows = [row for row in rows if has_both(row, axes)]
    with figure_context():
        figure = new_figure()
        ax = figure.add_subplot()
        for name, joined in lines.items():
            points = [
                [axis.position(row.metrics[axis.metric].value) for axis in axes]
                for row in joined
                if has_both(row, axes)
            ]
            ax.plot(*zip(*points), color=FAINT, linewidth=1.2, zorder=1, label=name)
        points = draw_rows(ax, axes, rows)
        add_legend(figure, [*lines, *(row.label for row in rows)])
        return to_svg(figure, "plane", describe(axes, points))


def draw_rows(ax: Axes, axes: AxisPair, rows: list[Row]) -> list[Point]:
    """Draw the axes and the rows that have both metrics. Return the rows' positions."""
    points = [
        draw_point(ax, axes, row, style, row.label)
        for row, style in zip(rows, assign_styles([row.kind for row in rows]))
        if has_both(row, axes)
    ]
    label_axes(ax, axes)
    return points


def has_both(row: Row, axes: AxisPair) -> bool:
    """Whether a row has the metrics of both axes."""
    return all(axis.metric in row.metrics for axis in axes)


def draw_point(ax: Axes, axes: AxisPair, row: Row, style: Style, label: str) -> Point:
    """Draw a row's marker with error bars for both metrics, and return its position.

    label: the row's name in the legend.
    """
    x, x_error = axes.horizontal.convert(row.metrics[axes.horizontal.metric])
    y, y_error = axes.vertical.convert(row.metrics[axes.vertical.metric])
    # matplotlib expects an array (2, 1) for one point.
    xerr = None if x_error is None else np.array([x_error]).T
    yerr = None if y_error is None else np.array([y_error]).T
    ax.errorbar(
        x,
        y,
        xerr=xerr,
        yerr=yerr,
        marker=style.marker,
        color=style.colour,
        label=label,
        markersize=7,
        linewidth=1.2,
        capsize=2.5,
        linestyle="none",
    )
    return Point(x, y, label, x_error, y_error)


def label_axes(ax: Axes, axes: AxisPair) -> None:
    ax.margins(0.22)
    if axes.vertical.offset:  # a percentage: no tick labels above 100
        ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= 100])
    ax.grid()
    ax.set_xlabel(f"{axes.horizontal.label}  →")
    ax.set_ylabel(f"{axes.vertical.label}  →")


def describe(axes: AxisPair, points: list[Point]) -> str:
    """Return a description of the figure in words, for its alt text."""
    positions = "; ".join(f"{point.label} at {point.x:.2f}, {point.y:.2f}" for point in points)
    return f"{axes.vertical.label} against {axes.horizontal.label}: {positions}"


def choose_axes(rows: Sequence[Row]) -> Optional[AxisPair]:
    """Return the axes of the figure; None if fewer than two rows have the metrics of both.

    A candidate is available if at least two rows have its metric. The first candidates of both axes
    are metrics of facts. They are used only together, if both are available. Otherwise each axis
    shows the first available candidate among the rest.
    """

    def first_available(choices):
        for axis in choices:
            if len([row for row in rows if axis.metric in row.metrics]) > 1:
                return axis
        return None

    if first_available(ACCURATE[:1]) and first_available(DESCRIPTIVE[:1]):
        axes = AxisPair(DESCRIPTIVE[0], ACCURATE[0])
    else:
        axes = AxisPair(first_available(DESCRIPTIVE[1:]), first_available(ACCURATE[1:]))
    if None in axes or sum(has_both(row, axes) for row in rows) < 2:
        return None
    return axes


def label_points(figure: Figure, ax: Axes, points: list[Point]) -> None:
    """Write each point's label next to it, with as little overlap as possible."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    occupied = []  # boxes in pixels of all error bars and markers, then also of the labels
    for point in points:
        left, right = point.x_error or (0, 0)
        down, up = point.y_error or (0, 0)
        x, y = ax.transData.transform((point.x, point.y))
        x0, y0 = ax.transData.transform((point.x - left, point.y - down))
        x1, y1 = ax.transData.transform((point.x + right, point.y + up))
        occupied += [
            Bbox.from_extents(x0, y - 4, x1, y + 4),
            Bbox.from_extents(x - 4, y0, x + 4, y1),
            Bbox.from_extents(x - 8, y - 8, x + 8, y + 8),
        ]
    for point in points:
        occupied.append(_label_point(ax, point, occupied, canvas.get_renderer()))


def _label_point(ax: Axes, point: Point, occupied: list[Bbox], renderer) -> Bbox:
    """Write a point's label at the offset where it overlaps least, and return the label's box.

    occupied: boxes that the label should not overlap.
    """
    plot_area = ax.get_window_extent(renderer)
    text = ax.annotate(
        point.label,
        xy=(point.x, point.y),
        xytext=OFFSETS[0],
        textcoords="offset points",
        fontsize=9,
        color=INK,
        in_layout=False,
    )

    def box_at(offset):
        text.xyann = dx, dy = offset
        text.set_horizontalalignment({1: "left", 0: "center", -1: "right"}[np.sign(dx)])
        text.set_verticalalignment({1: "bottom", 0: "center", -1: "top"}[np.sign(dy)])
        return text.get_window_extent(renderer)

    def cost(offset):
        box = box_at(offset)
        outside = box.width * box.height - _overlap(box, plot_area)
        return sum(_overlap(box, other) for other in occupied) + outside

    return box_at(min(OFFSETS, key=cost))


def _overlap(a: Bbox, b: Bbox) -> float:
    common = Bbox.intersection(a, b)
    return 0.0 if common is None else common.width * common.height
