"""The frontier of accuracy and descriptiveness: the mixtures joined by a line, the rest beside."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from captioning.report.comparison import Row
from captioning.report.figures import STYLES, Style, look, styles
from captioning.report.plane import (
    Pair,
    Point,
    choose_axes,
    described,
    draw_point,
    has_both,
    name_axes,
    name_points,
)

PANEL = (4.6, 3.9)  # inches
LINE, FAINT_LINE = STYLES["mixture"].colour, "#9aa5b1"


class Entry(NamedTuple):
    """A line of the table and a point of the figure. weight: MLE's share, None off the frontier."""

    row: Row
    label: str
    weight: Optional[float] = None

    @property
    def short(self) -> str:
        """Its name in the figure, where a mixture needs but the number."""
        between = self.weight is not None and 0 < self.weight < 1
        return f"{self.weight:g}" if between else self.label


def draw_frontier(entries: Sequence[Entry], path: Path) -> Optional[str]:
    """Write the figure, of the kind that the path's ending names, and return it in words.

    None, and no file, where fewer than two entries have the metrics of an axis. Points have the
    95 % intervals of both metrics. What is no mixture has a panel of its own, the line behind it.
    """
    axes = choose_axes([entry.row for entry in entries])
    if axes is None:
        return None
    entries = [entry for entry in entries if has_both(entry.row, axes)]
    mixtures = sorted((e for e in entries if e.weight is not None), key=lambda e: e.weight)
    humans = [entry for entry in entries if entry.row.kind == "humans"]
    others = [entry for entry in entries if entry.weight is None and entry not in humans]
    panels = [("mixtures of MLE and SMILE, by MLE's weight", [*humans, *mixtures], LINE)]
    if others:
        ends = [entry for entry in mixtures if entry.weight in (0, 1)]
        panels.append(("ablations", [*ends, *others], FAINT_LINE))
    with look():
        figure = Figure(figsize=(PANEL[0] * len(panels), PANEL[1]), layout="constrained")
        drawn = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        named = []
        for ax, (title, shown, colour) in zip(drawn, panels):
            _join(ax, axes, mixtures, colour)
            named.append((ax, _points(ax, axes, shown)))
            name_axes(ax, axes)
            ax.set_title(title)
        for ax, points in named:  # when the axes, which they share, have their limits
            name_points(figure, ax, points)
        figure.savefig(path, facecolor="white", dpi=150, metadata=_undated(path))
    return described(axes, [point for _, points in named for point in points])


def _join(ax: Axes, axes: Pair, mixtures: Sequence[Entry], colour: str) -> None:
    across, up = (
        [axis.of(entry.row.metrics[axis.metric])[0] for entry in mixtures] for axis in axes
    )
    ax.plot(across, up, color=colour, linewidth=1.2, zorder=1)


def _points(ax: Axes, axes: Pair, entries: Sequence[Entry]) -> list[Point]:
    return [
        draw_point(ax, axes, entry.row, style, entry.short)
        for entry, style in zip(entries, _styles(entries))
    ]


def _styles(entries: Sequence[Entry]) -> list[Style]:
    """As in the report, but what is on the line between MLE and SMILE looks alike."""
    between = [entry.weight is not None and 0 < entry.weight < 1 for entry in entries]
    others = iter(styles([e.row.kind for e, on_line in zip(entries, between) if not on_line]))
    return [STYLES["mixture"] if on_line else next(others) for on_line in between]


def _undated(path: Path) -> Optional[dict[str, None]]:
    """The same runs give the same file."""
    return {"Date": None} if path.suffix == ".svg" else None
