"""Compares the decodings of a sweep's runs: a table, and a figure with their cost."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from matplotlib.figure import Figure

from captioning.files.reading import read_json
from captioning.files.writing import write_text
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.registry import Metric
from captioning.report import plane
from captioning.report.comparison import Row
from captioning.report.comparison_table import format_value, select_columns, to_markdown
from captioning.report.figures import assign_styles, figure_context, save_figure
from captioning.report.runs import parse_metrics
from captioning.sweep.decodings import (
    CHOICES,
    DECODINGS,
    OF_DROPPED,
    cost_of,
    decodings_of,
    folder_of,
)
from captioning.sweep.frontier import IN_TABLE
from captioning.sweep.over_seeds import over_seeds
from captioning.sweep.runs import Sweep

CHOSEN_BY = ("scene_R@1", "R@1", "CIDEr")  # the first available metric of the validation split
_CHOSEN = " *"
STYLE_OF = {"MLE": "mle", "SMILE": "smile"}


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


def write_decodings(
    sweeps: Sequence[Sweep],
    names: Sequence[str],
    folder: Path,
    more: Optional[Mapping[Path, Mapping[str, Estimate]]] = None,
    columns: Sequence[Metric] = (),
) -> str:
    """Write decodings.md and decodings.svg to the folder; return the table.

    Runs of the same label are seeds of one variant. more: {folder of a decoding: metrics of its
    test captions}, in addition to the metrics that are stored there; `columns` shows them.
    """
    lines = list(_lines(sweeps, names, more or {}))
    shown = [c for c in select_columns(line.row for line in lines) if c.name in IN_TABLE]
    columns = [*shown, *columns]
    headings = [*(c.heading for c in columns), "decoder tokens", "time"]
    table = []
    for variant in dict.fromkeys(line.variant for line in lines):
        rows = [
            [
                line.label,
                *(format_value(column, line.row) for column in columns),
                f"{line.tokens:.0f}",
                f"{line.time:.1f}",
            ]
            for line in lines
            if line.variant == variant
        ]
        table.append(f"{variant}\n\n{to_markdown(headings, rows)}")
    text = "\n".join(table)
    write_text(text, folder / "decodings.md")
    draw(lines, folder / "decodings.svg")
    return text


def _lines(sweeps: Sequence[Sweep], names: Sequence[str], more: Mapping) -> Iterator[Line]:
    runs_of: dict[str, list[Path]] = {}
    tried_of: dict[str, list[str]] = {}
    for sweep in sweeps:
        for variant in sweep.variants:
            runs_of.setdefault(variant.label, []).append(sweep.folder / variant.name)
            tried_of[variant.label] = decodings_of(sweep.scored[variant.name], names)
    for label, runs in runs_of.items():
        chosen = _chosen(runs, tried_of[label])
        for name in tried_of[label]:
            rows = [_row(run, name, "test", more) for run in runs]
            costs = [cost_of(run, name) for run in runs]
            yield Line(
                label,
                name,
                over_seeds(rows, DECODINGS[name].label),
                statistics.mean(cost["tokens"] for cost in costs),
                statistics.mean(cost["time"] for cost in costs),
                name in chosen,
            )


def _row(run: Path, name: str, split: str, more: Mapping) -> Row:
    folder = folder_of(run, name)
    path = folder / "result" / split / "metrics.json"
    metrics = parse_metrics(read_json(path)["metrics"], path)
    return Row(name, "decoding", {}, {**metrics, **more.get(folder, {})})


def _chosen(runs: Sequence[Path], names: Sequence[str]) -> set[str]:
    """For each key of CHOICES, the best decoding on the validation split."""
    found = set()
    for key in CHOICES:
        values = {}
        for name in (name for name in names if key in DECODINGS[name].keys):
            metrics = [_row(run, name, "val", {}).metrics for run in runs]
            metric = next((metric for metric in CHOSEN_BY if metric in metrics[0]), None)
            if metric is None:
                return set()
            values[name] = statistics.mean(each[metric].value for each in metrics)
        if values:
            found.add(max(values, key=values.get))
    return found


def draw(lines: Sequence[Line], path: Path) -> None:
    """The plane of accuracy and descriptiveness, in which a larger marker has cost more tokens.

    The square of a marker's area is proportional to the tokens, which differ by two orders of
    magnitude. Of weights only the chosen ones are shown. Hollow: trained with dropped images.
    """
    axes = plane.choose_axes([line.row for line in lines])
    if axes is None:
        return
    weighted = {name for name in DECODINGS if any(key in DECODINGS[name].keys for key in CHOICES)}
    lines = [line for line in lines if plane.has_both(line.row, axes)]
    lines = [line for line in lines if line.chosen or line.decoding not in weighted]
    objectives = list(dict.fromkeys(line.variant.removesuffix(OF_DROPPED) for line in lines))
    kinds = [STYLE_OF.get(name, "mixture" if "+" in name else "random") for name in objectives]
    style_of = dict(zip(objectives, assign_styles(kinds)))
    least = min((line.tokens for line in lines), default=1)
    with figure_context():
        figure = Figure(figsize=(8.6, 5.6), layout="constrained")
        ax = figure.add_subplot()
        points = []
        for line in sorted(lines, key=lambda line: -line.tokens):
            x, _ = axes.horizontal.convert(line.row.metrics[axes.horizontal.metric])
            y, _ = axes.vertical.convert(line.row.metrics[axes.vertical.metric])
            colour = style_of[line.variant.removesuffix(OF_DROPPED)].colour
            hollow = line.variant.endswith(OF_DROPPED)
            area = 26 * math.sqrt(line.tokens / least)
            ax.scatter(
                x, y, s=area, edgecolors=colour, facecolors="none" if hollow else colour, alpha=0.75
            )
            if not hollow:
                points.append(plane.Point(x, y, None, None, line.decoding))
        for objective, style in style_of.items():
            ax.scatter([], [], s=60, color=style.colour, label=objective)
        plane.label_axes(ax, axes)
        plane.label_points(figure, ax, points)
        figure.legend(loc="outside lower center", ncols=len(objectives))
        save_figure(figure, path)
