"""The figure of accuracy against descriptiveness."""

from typing import NamedTuple, Optional

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Row
from captioning.report.figures import INK, Style, look, new_figure, styles, svg


class Axis(NamedTuple):
    metric: str
    label: str
    factor: float = 1.0
    offset: float = 0.0

    def of(self, metric: Estimate) -> tuple[float, Optional[tuple[float, float]]]:
        """The metric's value on this axis, and its interval's distances down and up."""
        value, *ends = (
            None if v is None else self.offset + self.factor * v
            for v in (metric.value, metric.low, metric.high)
        )
        if None in ends:
            return value, None
        return value, (max(value - min(ends), 0.0), max(max(ends) - value, 0.0))


class Pair(NamedTuple):
    across: Axis
    up: Axis


class Point(NamedTuple):
    """A row's position, and the lengths of its error bars on both sides; None without intervals."""

    x: float
    y: float
    x_reach: Optional[tuple[float, float]]
    y_reach: Optional[tuple[float, float]]
    label: str


# The choices for each axis. The first metric that at least two rows have is used.
DESCRIPTIVE = (
    Axis("true_facts", "true facts a caption"),
    Axis("cap_len", "words a caption"),
    Axis("lex_div", "distinct words", 1000.0),
)
ACCURATE = (
    Axis("wrong_facts", "stated facts that are right (%)", -1.0, 100.0),
    Axis("CHAIRi", "named objects that are there (%)", -1.0, 100.0),
    Axis("CLIPScore", "CLIPScore"),
    Axis("CIDEr", "CIDEr"),
)
# Possible offsets of a label from its point, in typographic points. Earlier ones win ties.
OFFSETS = ((9, 8), (9, -8), (-9, 8), (-9, -8), (0, 14), (0, -14), (12, 0), (-12, 0))


def plane(rows: list[Row]) -> Optional[Markup]:
    """The figure; None if the rows lack the metrics."""
    axes = choose_axes(rows)
    if axes is None:
        return None
    with look():
        figure = new_figure()
        ax = figure.add_subplot()
        points = [
            draw_point(ax, axes, row, style, row.label)
            for row, style in zip(rows, styles([row.kind for row in rows]))
            if has_both(row, axes)
        ]
        name_axes(ax, axes)
        name_points(figure, ax, points)
        return svg(figure, "plane", described(axes, points))


def has_both(row: Row, axes: Pair) -> bool:
    return all(axis.metric in row.metrics for axis in axes)


def draw_point(ax: Axes, axes: Pair, row: Row, style: Style, label: str) -> Point:
    """Draw a row's marker with the intervals of both metrics. label: for a legend, if any."""
    x, x_reach = axes.across.of(row.metrics[axes.across.metric])
    y, y_reach = axes.up.of(row.metrics[axes.up.metric])
    xerr, yerr = (reach and [[end] for end in reach] for reach in (x_reach, y_reach))
    shape = {"markersize": 7, "linewidth": 1.2, "capsize": 2.5, "linestyle": "none"}
    look_of = {"marker": style.marker, "color": style.colour, "label": label}
    ax.errorbar(x, y, xerr=xerr, yerr=yerr, **look_of, **shape)
    return Point(x, y, x_reach, y_reach, label)


def name_axes(ax: Axes, axes: Pair) -> None:
    ax.margins(0.22)
    if axes.up.offset:  # a percentage: no tick labels above 100
        ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= 100])
    ax.grid()
    ax.set_xlabel(f"{axes.across.label}  →")
    ax.set_ylabel(f"{axes.up.label}  →")


def described(axes: Pair, points: list[Point]) -> str:
    """A description of the figure in words, for its alt text."""
    places = "; ".join(f"{point.label} at {point.x:.2f}, {point.y:.2f}" for point in points)
    return f"{axes.up.label} against {axes.across.label}: {places}"


def choose_axes(rows: list[Row]) -> Optional[Pair]:
    """For each axis, the first metric that at least two rows have; None if there is none."""

    def shown(choices):
        return next((a for a in choices if sum(a.metric in r.metrics for r in rows) > 1), None)

    if shown(ACCURATE[:1]) and shown(DESCRIPTIVE[:1]):
        return Pair(DESCRIPTIVE[0], ACCURATE[0])
    across, up = shown(DESCRIPTIVE[1:]), shown(ACCURATE[1:])
    return Pair(across, up) if across and up else None


def name_points(figure: Figure, ax: Axes, points: list[Point]) -> None:
    """Write each point's label next to it, with as little overlap as possible."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    occupied = []
    for x, y, x_reach, y_reach, _ in points:
        (left, right), (down, up) = x_reach or (0, 0), y_reach or (0, 0)
        (x0, y0), (x1, y1) = ax.transData.transform([(x - left, y - down), (x + right, y + up)])
        xc, yc = ax.transData.transform((x, y))
        occupied += [
            Bbox.from_extents(x0, yc - 4, x1, yc + 4),
            Bbox.from_extents(xc - 4, y0, xc + 4, y1),
            Bbox.from_extents(xc - 8, yc - 8, xc + 8, yc + 8),
        ]
    for point in points:
        occupied.append(_name_point(ax, point, occupied, canvas.get_renderer()))


def _name_point(ax: Axes, point: Point, occupied: list[Bbox], renderer) -> Bbox:
    inside = ax.get_window_extent(renderer)
    place = {"xy": (point.x, point.y), "xytext": OFFSETS[0], "textcoords": "offset points"}
    text = ax.annotate(point.label, **place, fontsize=9, color=INK, in_layout=False)

    def box_at(offset: tuple[int, int]) -> Bbox:
        text.xyann = dx, dy = offset
        text.set_horizontalalignment("left" if dx > 0 else "right" if dx < 0 else "center")
        text.set_verticalalignment("bottom" if dy > 0 else "top" if dy < 0 else "center")
        return text.get_window_extent(renderer)

    def cost(offset: tuple[int, int]) -> float:
        box = box_at(offset)
        outside = box.width * box.height - _overlap(box, inside)
        return sum(_overlap(box, other) for other in occupied) + outside

    return box_at(min(OFFSETS, key=cost))


def _overlap(a: Bbox, b: Bbox) -> float:
    common = Bbox.intersection(a, b)
    return 0.0 if common is None else common.width * common.height
