"""Draws the report's curves and histograms of caption lengths as SVG, and defines their styles."""

import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from captioning.config.objectives import objective_title
from captioning.metrics.diversity import count_words
from captioning.report.comparison import Row
from captioning.report.runs import Run
from captioning.training.run_log import CURVES
from smile import OBJECTIVES

WIDTH, HEIGHT = 4.3, 3.2  # inches; about as wide as a phone
LEGEND_WIDTH, HANDLE_WIDTH = 66, 8  # in characters
INK, FAINT = "#1c2733", "#c9d1d9"


class Style(NamedTuple):
    """How a row of the comparison looks in all figures. Styles differ even without colour.

    marker, dashes: matplotlib's codes for the shape of points and for the line.
    """

    colour: str
    marker: str
    dashes: str


# The first styles belong to these kinds of rows, see `captioning.report.runs.Run`. The others are
# for further kinds, and for further runs of a kind.
KINDS = ("humans", "mle", "smile", "mixture", "random", "reverse", "weights")
# The first colours are from Okabe and Ito's palette, which colour-blind people can distinguish.
COLOURS = (
    *("#4a4f57", "#0072b2", "#d55e00", "#00805c", "#a8478a", "#8a6d00", "#5b4bb5"),
    *("#3d87c4", "#7d2a56", "#56700f", "#8c4a1f", "#2a7f86", "#b23a48", "#4b5d9b", "#6f6f6f"),
    *("#9a5fb5", "#b07d00"),
)
STYLES = list(
    map(Style, COLOURS, itertools.cycle("Dos^vPX<>hpd*8H"), itertools.cycle((":", "-", "--", "-.")))
)

# Names of scores {score: label} of which the first is drawn that has been logged in several epochs.
VALIDATION = (
    {"CIDEr": "CIDEr", "Bleu_4": "BLEU-4"},
    {"true_facts": "true facts a caption", "cap_len": "words a caption"},
)
RC_PARAMS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
    "svg.fonttype": "path",  # text is saved as outlines, so that the page needs no font
    "svg.hashsalt": "report",  # the same figure gives the same file
    "text.parse_math": False,  # folder names may contain dollar signs
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e8ec",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def figure_context():
    """Return a context manager that sets RC_PARAMS. All figures are drawn within this context."""
    return matplotlib.rc_context(RC_PARAMS)


def assign_styles(kinds: Sequence[str]) -> list[Style]:
    """Return a style for each row. kinds: the rows' kinds.

    The first row of a kind in KINDS gets the style of this kind. Other rows get the styles after
    those, which are repeated if there are more rows than styles.
    """
    own_styles = dict(zip(KINDS, STYLES))
    further_styles = itertools.cycle(STYLES[len(KINDS) :])
    return [own_styles.pop(kind, None) or next(further_styles) for kind in kinds]


def new_figure(height: float = HEIGHT) -> Figure:
    """Return an empty figure of the page's width. height: in inches."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def add_legend(figure: Figure) -> None:
    """Put a legend above the axes, in as many columns as fit, and make room for it."""
    labels = figure.axes[0].get_legend_handles_labels()[1]
    columns = max(1, min(3, LEGEND_WIDTH // (max(map(len, labels)) + HANDLE_WIDTH)))
    figure.set_figheight(figure.get_figheight() + 0.18 * (math.ceil(len(labels) / columns) - 1))
    figure.legend(loc="outside upper left", ncols=columns, handlelength=2.6)


def to_svg(figure: Figure, name: str, description: str) -> Markup:
    """Return a figure as an <svg> element, which is also a whole file.

    name: a prefix of the ids in the element, which makes them unique in the page. description: the
    text for screen readers.
    """
    buffer = io.StringIO()
    with figure_context():
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", facecolor="white", metadata=no_metadata)
    text = buffer.getvalue().partition("<svg ")[2]
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return Markup('<svg role="img" aria-label="{}" ').format(description) + Markup(text)


class Curve(NamedTuple):
    run: Run
    style: Style
    x: np.ndarray
    y: np.ndarray


def draw_curves(runs: Sequence[Run]) -> Iterator[tuple[str, Markup]]:
    """Yield (title, figure) for each objective's loss, for CURVES, and for validation scores.

    Figures without data are left out.
    """
    losses = {
        part: (f"{objective_title(part)} loss in training", "nats a token") for part in OBJECTIVES
    }
    for part, (title, label) in {**losses, **CURVES}.items():
        if curves := _read_curves(runs, "step", part):
            yield title, _draw(curves, part, title, "optimizer step", label)
    for choices in VALIDATION:
        for name, label in choices.items():
            if curves := _read_curves(runs, "val", name):
                title = f"Validation: {label}"
                yield title, _draw(curves, f"val-{name}", title, "epoch", label)
                break


def _read_curves(runs: Sequence[Run], event: str, name: str) -> list[Curve]:
    """Return the curves of the runs that logged a value `name` more than once.

    event: "step" for values of training steps, "val" for scores of validations. The x of a
    validation is its epoch: the log counts epochs from 0, the curve from 1.
    """
    curves = []
    for run, style in zip(runs, assign_styles([run.kind for run in runs])):
        # A resumed run may have logged a step twice. The last entry counts.
        points = {e["step"]: e[name] for e in run.log if e.get("event") == event and name in e}
        if len(points) > 1:
            x, y = np.array(sorted(points.items()), dtype=float).T
            curves.append(Curve(run, style, x + 1 if event == "val" else x, y))
    return curves


def moving_average(values: np.ndarray) -> np.ndarray:
    """Return values (n,), each averaged over a window of about n / 10 values around it.

    At both ends, the window has fewer values.
    """
    window = np.ones(2 * (len(values) // 20) + 1)
    counts = np.convolve(np.ones(len(values)), window, "same")  # the values in each window
    return np.convolve(values, window, "same") / counts


def _draw(curves: list[Curve], name: str, title: str, x_label: str, y_label: str) -> Markup:
    """Return a figure of curves. name: see `to_svg`.

    Steps are noisy, so their moving averages are drawn, with the values faintly behind them.
    """
    with figure_context():
        figure = new_figure()
        ax = figure.add_subplot()
        for run, (colour, marker, dashes), x, y in curves:
            if x_label == "epoch":
                ax.plot(x, y, dashes, marker=marker, color=colour, label=run.label)
            else:
                ax.plot(x, y, color=colour, alpha=0.3, linewidth=0.8)
                ax.plot(x, moving_average(y), dashes, color=colour, label=run.label)
        ax.grid()
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        ax.locator_params("x", nbins=6, integer=True)
        add_legend(figure)
        ends = "; ".join(f"{curve.run.label} ends at {curve.y[-1]:.3f}" for curve in curves)
        return to_svg(figure, name, f"{title}, {y_label} by {x_label}: {ends}")


def length_histogram(rows: Sequence[Row]) -> Markup:
    """Draw a histogram of the lengths of each row's captions."""
    lengths_of = [np.array(list(map(count_words, row.captions.values()))) for row in rows]
    # The axis ends at the 99th percentile. Longer captions are counted in the last bin.
    last_bin = max(1, *(np.quantile(each, 0.99, method="inverted_cdf") for each in lengths_of))
    with figure_context():
        figure = new_figure(0.75 + 0.72 * len(rows))
        axes = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        styles = assign_styles([row.kind for row in rows])
        for ax, row, style, lengths in zip(axes, rows, styles, lengths_of):
            bins, counts = np.unique(np.minimum(lengths, last_bin), return_counts=True)
            ax.bar(bins, 100 * counts / len(lengths), 0.82, color=style.colour)
            ax.axvline(lengths.mean(), color=INK, linewidth=1, linestyle="--")
            ax.set_title(row.label, fontsize=9, loc="left", fontweight="bold")
            ax.set_title(f"mean {lengths.mean():.1f}", fontsize=8.5, loc="right")
            ax.locator_params("y", nbins=2, integer=True)
            ax.spines["left"].set_visible(False)
            ax.grid(axis="y")
        axes[-1].set_xlabel("words a caption")
        axes[-1].locator_params("x", nbins=8, integer=True)
        figure.supylabel("captions (%)", fontsize=9.5)
        means = ", ".join(f"{row.label} {n.mean():.1f}" for row, n in zip(rows, lengths_of))
        return to_svg(figure, "lengths", f"Words a caption, on average: {means}")
