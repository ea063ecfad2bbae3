"""Compares the decodings of a sweep's runs: a table, and a figure with their cost."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from captioning.files.reading import read_json
from captioning.files.writing import write_text
from captioning.report import plane
from captioning.report.comparison import Row
from captioning.report.comparison_table import columns_of, in_markdown, shown_value
from captioning.report.figures import look, save, styles
from captioning.report.runs import metrics_of
from captioning.sweep.decodings import (
    CHOICES,
    DECODINGS,
    REFERENCE,
    cost_of,
    decodings_of,
    folder_of,
)
from captioning.sweep.frontier import IN_TABLE
from captioning.sweep.over_seeds import over_seeds
from captioning.sweep.runs import Sweep
from captioning.sweep.variants import Variant

CHOSEN_BY = ("scene_R@1", "R@1", "CIDEr")  # the first available metric of the validation split
_CHOSEN = " *"


class Line(NamedTuple):
    """A decoding of a variant, averaged over seeds.

    tokens: tokens per image that the decoder reads. time: relative to REFERENCE of the same run.
    chosen: whether its weight is the best of its kind on the validation split.
    """

    variant: str
    decoding: str
    row: Row
    tokens: float
    time: float
    chosen: bool

    @property
    def label(self) -> str:
        return DECODINGS[self.decoding].label + (_CHOSEN if self.chosen else "")


def write_decodings(sweep: Sweep, names: Sequence[str]) -> str:
    """Write decodings.md and decodings.svg to the sweep's folder; return the table."""
    lines = list(_lines(sweep, names))
    columns = [c for c in columns_of(line.row for line in lines) if c.metric in IN_TABLE]
    headings = [*(c.heading for c in columns), "decoder tokens", "time"]
    table = []
    for variant in dict.fromkeys(line.variant for line in lines):
        rows = [
            [
                line.label,
                *(shown_value(column, line.row) for column in columns),
                f"{line.tokens:.0f}",
                f"{line.time:.1f}",
            ]
            for line in lines
            if line.variant == variant
        ]
        table.append(f"{variant}\n\n{in_markdown(headings, rows)}")
    text = "\n".join(table)
    write_text(text, sweep.folder / "decodings.md")
    draw(lines, sweep.folder / "decodings.svg")
    return text


def _lines(sweep: Sweep, names: Sequence[str]) -> Iterator[Line]:
    of_label: dict[str, list[Variant]] = {}
    for variant in sweep.variants:
        of_label.setdefault(variant.label, []).append(variant)
    for label, variants in of_label.items():
        runs = [sweep.folder / variant.name for variant in variants]
        tried = decodings_of(sweep.scored[variants[0].name], names)
        chosen = _chosen(runs, tried)
        for name in tried:
            rows = [_row(run, name, "test") for run in runs]
            costs = [cost_of(run, name) for run in runs]
            yield Line(
                label,
                name,
                over_seeds(rows, DECODINGS[name].label),
                statistics.mean(cost["tokens"] for cost in costs),
                statistics.mean(cost["time"] for cost in costs),
                name in chosen,
            )


def _row(run: Path, name: str, split: str) -> Row:
    path = folder_of(run, name) / "result" / split / "metrics.json"
    return Row(name, "decoding", {}, metrics_of(read_json(path)["metrics"], path))


def _chosen(runs: Sequence[Path], names: Sequence[str]) -> set[str]:
    """For each key of CHOICES, the best decoding on the validation split."""
    found = set()
    for key in CHOICES:
        values = {}
        for name in (name for name in names if key in DECODINGS[name].keys):
            metrics = [_row(run, name, "val").metrics for run in runs]
            metric = next((metric for metric in CHOSEN_BY if metric in metrics[0]), None)
            if metric is None:
                return set()
            values[name] = statistics.mean(each[metric].value for each in metrics)
        if values:
            found.add(max(values, key=values.get))
    return found


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw accuracy against descriptiveness. A marker's area is proportional to the tokens."""
    axes = plane.choose_axes([line.row for line in lines])
    if axes is None:
        return
    lines = [line for line in lines if plane.has_both(line.row, axes)]
    variants = list(dict.fromkeys(line.variant for line in lines))
    styles_of = dict(zip(variants, styles(variants)))
    unnamed = list(variants)
    least = min(line.tokens for line in lines)
    with look():
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        ax = figure.add_subplot()
        points = []
        for line in lines:
            x, _ = axes.across.of(line.row.metrics[axes.across.metric])
            y, _ = axes.up.of(line.row.metrics[axes.up.metric])
            style = styles_of[line.variant]
            ax.scatter(
                x,
                y,
                s=20 * line.tokens / least,
                color=style.colour,
                alpha=0.6,
                label=line.variant if line.variant in unnamed else None,
            )
            unnamed = [variant for variant in unnamed if variant != line.variant]
            if line.chosen or line.decoding == REFERENCE:
                points.append(plane.Point(x, y, None, None, line.label.removesuffix(_CHOSEN)))
        plane.name_axes(ax, axes)
        plane.name_points(figure, ax, points)
        figure.legend(loc="outside right center")
        save(figure, path)
