"""Writes a table and a figure that compare the decodings of a sweep, by scores and by cost."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.figure import Figure

from captioning.files.reading import read_json
from captioning.files.writing import write_text
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.registry import Metric
from captioning.report import plane
from captioning.report.comparison import Row
from captioning.report.comparison_table import rows_to_markdown, select_columns
from captioning.report.figures import assign_styles, figure_context, save_figure
from captioning.report.runs import recorded_scores
from captioning.sweep.decodings import (
    COST_FILE,
    DECODINGS,
    DROPPED_SUFFIX,
    TUNED_KEYS,
    applicable_decodings,
    decoding_folder,
)
from captioning.sweep.frontier import coordinates
from captioning.sweep.over_seeds import mean_over_seeds
from captioning.sweep.runs import Sweep

# The values of TUNED_KEYS are chosen by the first of these metrics that was computed on the
# validation split.
TUNING_METRICS = ("scene_R@1", "R@1", "CIDEr")
# Decoder tokens per image, and the time as a multiple of TIME_REFERENCE's in the same process.
COSTS = (Metric("tokens", "decoder tokens", decimals=0), Metric("time", "time"))
_CHOSEN_MARK = " *"  # ends the label of a decoding that is `Line.chosen`
VARIANT_STYLES = {"MLE": "mle", "SMILE": "smile"}  # {label of a variant: its key in STYLES}


class Line(NamedTuple):
    """A line of the table: the scores of a variant with one decoding, averaged over seeds.

    variant: the variant's label. decoding: a name in DECODINGS. row: the metrics, including COSTS.
    chosen: whether its value of a key of TUNED_KEYS was the best on the validation split.
    """

    variant: str
    decoding: str
    row: Row
    chosen: bool

    @property
    def objective(self) -> str:
        """The variant's label without DROPPED_SUFFIX."""
        return self.variant.removesuffix(DROPPED_SUFFIX)

    @property
    def tokens(self) -> float:
        """Decoder tokens per image."""
        return self.row.metrics["tokens"].value


def write_decodings(
    sweeps: Sequence[Sweep],
    names: Sequence[str],
    folder: Path,
    extra_metrics: Mapping[Path, Mapping[str, Estimate]] = MappingProxyType({}),
    columns: Sequence[Metric] = (),
) -> str:
    """Write decodings.md and decodings.svg to the folder; return the table.

    Runs with the same label of the variant, from one or several sweeps, are seeds of one variant.
    names: the names of the decodings. extra_metrics: {folder of a decoding: metrics of its test
    captions}, which are added to the stored metrics. columns: the columns for the extra metrics,
    which are appended to the table.
    """
    lines = list(_lines(sweeps, names, extra_metrics))
    stored = select_columns(line.row for line in lines)
    stored = [column for column in stored if column.in_sweeps]
    columns = [*stored, *columns, *COSTS]
    rows_of = {}  # {variant: rows of its table}
    for line in lines:
        label = DECODINGS[line.decoding].label
        if line.chosen:
            label += _CHOSEN_MARK
        rows_of.setdefault(line.variant, []).append(line.row._replace(label=label))
    tables = [f"{name}\n\n{rows_to_markdown(columns, rows)}" for name, rows in rows_of.items()]
    text = "\n".join(tables)
    write_text(text, folder / "decodings.md")
    draw_decodings(lines, folder / "decodings.svg")
    return text


def _lines(sweeps: Sequence[Sweep], names: Sequence[str], extra_metrics: Mapping) -> Iterator[Line]:
    """Yield a line for each decoding of each variant. For the arguments, see `write_decodings`."""
    runs_by_label = {}
    configs = {}  # {variant's label: configuration of one of its runs}
    for sweep in sweeps:
        for variant in sweep.variants:
            runs_by_label.setdefault(variant.label, []).append(sweep.folder / variant.name)
            configs[variant.label] = sweep.scored[variant.name]
    for label, runs in runs_by_label.items():
        applicable = applicable_decodings(configs[label], names)
        chosen = _chosen_decodings(runs, applicable)
        for name in applicable:
            rows = [_read_row(run, name, "test", extra_metrics) for run in runs]
            yield Line(label, name, mean_over_seeds(rows, name), name in chosen)


def _read_row(run: Path, name: str, split: str, extra_metrics: Mapping) -> Row:
    """Return the stored metrics and COSTS of a run with the decoding `name`, and extra metrics."""
    folder = decoding_folder(run, name)
    metrics = recorded_scores(folder, split).metrics
    cost = read_json(folder / f"{split}_{COST_FILE}")
    costs = {column.name: Estimate(cost[column.name]) for column in COSTS}
    return Row(name, "decoding", {}, {**metrics, **costs, **extra_metrics.get(folder, {})})


def _chosen_decodings(runs: Sequence[Path], names: Sequence[str]) -> set[str]:
    """Return the names of the best decodings on the validation split, one per key of TUNED_KEYS.

    runs: folders of the seeds of one variant. Returns an empty set if no metric of TUNING_METRICS
    was computed.
    """
    best = set()
    for key in TUNED_KEYS:
        values = {}
        for name in names:
            if key not in DECODINGS[name].keys:
                continue
            metrics = [_read_row(run, name, "val", {}).metrics for run in runs]
            metric = next((metric for metric in TUNING_METRICS if metric in metrics[0]), None)
            if metric is None:
                return set()
            values[name] = statistics.mean(run_metrics[metric].value for run_metrics in metrics)
        if values:
            best.add(max(values, key=values.get))
    return best


def draw_decodings(lines: Sequence[Line], path: Path) -> None:
    """Draw accuracy against descriptiveness. A larger marker stands for more decoder tokens.

    The numbers of tokens differ by two orders of magnitude, so a marker's area grows only with
    their square root. Of decodings that set a key of TUNED_KEYS, only the chosen ones are drawn.
    Hollow markers stand for captioners that were trained with dropped images. No file is written if
    the lines lack the metrics for the axes.
    """
    axes = plane.choose_axes([line.row for line in lines])
    if axes is None:
        return
    lines = [line for line in lines if plane.has_both(line.row, axes)]
    lines = [line for line in lines if line.chosen or not DECODINGS[line.decoding].is_tuned]
    objectives = list(dict.fromkeys(line.objective for line in lines))
    kinds = [
        VARIANT_STYLES.get(name, "mixture" if "+" in name else "random") for name in objectives
    ]
    objective_styles = dict(zip(objectives, assign_styles(kinds)))
    fewest_tokens = min((line.tokens for line in lines), default=0)
    with figure_context():
        figure = Figure(figsize=(8.6, 5.6), layout="constrained")
        ax = figure.add_subplot()
        points = []
        for line in sorted(lines, key=lambda line: -line.tokens):
            x, y = coordinates(line.row, axes)
            colour = objective_styles[line.objective].colour
            hollow = line.variant.endswith(DROPPED_SUFFIX)
            area = 26 * math.sqrt(line.tokens / fewest_tokens)
            ax.scatter(
                x, y, s=area, edgecolors=colour, facecolors="none" if hollow else colour, alpha=0.75
            )
            if not hollow:
                points.append(plane.Point(x, y, line.decoding))
        for objective, style in objective_styles.items():
            ax.scatter([], [], s=60, color=style.colour, label=objective)
        plane.label_axes(ax, axes)
        plane.label_points(figure, ax, points)
        figure.legend(loc="outside lower center", ncols=len(objectives))
        save_figure(figure, path)
