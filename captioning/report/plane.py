"""Draws the figure of accuracy against descriptiveness, with one point per row."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Optional

from markupsafe import Markup

from captioning.report.comparison import Row
from captioning.report.figures import assign_styles, figure_context, new_figure, to_svg


class Axis(NamedTuple):
    """An axis of the figure. inverted: the axis shows 100 - the metric's value."""

    metric: str
    label: str
    inverted: bool = False

    def position(self, value: float) -> float:
        return 100 - value if self.inverted else value

    def locate(self, row: Row) -> tuple[float, Optional[list[list[float]]]]:
        """Return a row's position, and its error bar for matplotlib; None without an interval."""
        estimate = row.metrics[self.metric]
        value = self.position(estimate.value)
        if estimate.low is None:
            return value, None
        low, high = sorted((self.position(estimate.low), self.position(estimate.high)))
        return value, [[max(value - low, 0.0)], [max(high - value, 0.0)]]


LENGTH = Axis("cap_len", "words a caption")
# The horizontal and the vertical axis. The first pair of which two rows have both metrics is drawn.
AXES = (
    (
        Axis("true_facts", "true facts a caption"),
        Axis("wrong_facts", "stated facts that are right (%)", inverted=True),
    ),
    (LENGTH, Axis("CHAIRi", "named objects that are there (%)", inverted=True)),
    (LENGTH, Axis("CLIPScore", "CLIPScore")),
    (LENGTH, Axis("CIDEr", "CIDEr")),
)


def draw_plane(
    rows: Sequence[Row], lines: Mapping[str, Sequence[Row]] = MappingProxyType({})
) -> Optional[Markup]:
    """Return the figure as SVG; None if fewer than two rows have the metrics of both axes.

    lines: {name in the legend: rows that a line joins, in this order}
    """

    def drawn(rows, axes):
        return [row for row in rows if all(axis.metric in row.metrics for axis in axes)]

    axes = next((pair for pair in AXES if len(drawn(rows, pair)) > 1), None)
    if axes is None:
        return None
    horizontal, vertical = axes
    positions = []
    with figure_context():
        figure, ax = new_figure(f"{horizontal.label}  →", f"{vertical.label}  →")
        for name, joined in lines.items():
            points = [[axis.locate(row)[0] for axis in axes] for row in drawn(joined, axes)]
            ax.plot(*zip(*points), color="#9aa5b1", linewidth=1.2, label=name)
        styles = assign_styles([row.kind for row in rows])
        for row, style in zip(rows, styles):
            if not drawn([row], axes):
                continue
            (x, x_bar), (y, y_bar) = (axis.locate(row) for axis in axes)
            ax.errorbar(x, y, y_bar, x_bar, color=style.colour, linewidth=1.2, capsize=2.5)
            ax.plot(x, y, style.marker, color=style.colour, markersize=7, label=row.label)
            positions.append(f"{row.label} at {x:.2f}, {y:.2f}")
        description = f"{vertical.label} against {horizontal.label}: {'; '.join(positions)}"
        return to_svg(figure, "plane", description)
