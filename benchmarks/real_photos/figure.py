"""How much is said against how well it tells its photo from others, and how well it agrees."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.real_photos.summary import FOUND
from captioning.report import plane
from captioning.report.comparison import Row
from captioning.report.figures import look, save, styles

LENGTH = plane.Axis("cap_len", "words a caption")
UP = (plane.Axis(FOUND, "captions that find their photo (%)"), plane.Axis("CIDEr", "CIDEr"))


def draw(rows: Sequence[Row], path: Path) -> str:
    """Write the figure, of the kind that the path's ending names, and return it in words."""
    described = []
    with look():
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        for ax, up in zip(figure.subplots(1, len(UP)), UP):
            axes = plane.Pair(LENGTH, up)
            present = [row for row in rows if plane.has_both(row, axes)]
            points = [
                plane.draw_point(ax, axes, row, style, row.label)
                for row, style in zip(present, styles([row.kind for row in present]))
            ]
            plane.name_axes(ax, axes)
            plane.name_points(figure, ax, points)
            described.append(plane.described(axes, points))
        save(figure, path)
    return "; ".join(described)
