"""Draws curves of training and of caption lengths as SVG, and defines how all figures look."""

import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from captioning.config.objectives import objective_title
from captioning.metrics.diversity import count_words
from captioning.report.comparison import Row
from captioning.report.runs import Run
from captioning.training.log import CURVES
from smile import OBJECTIVES

WIDTH, HEIGHT = 4.3, 3.0  # inches, without the legend; about as wide as a phone
LEGEND_WIDTH, HANDLE_WIDTH = 66, 8  # in characters


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


def new_figure(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Return a figure of the page's width, and its axes."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    ax = figure.add_subplot(xlabel=x_label, ylabel=y_label)
    ax.grid()
    return figure, ax


def to_svg(figure: Figure, name: str, description: str) -> Markup:
    """Put a legend above the figure; return it as an <svg> element, which is also a whole file.

    name: a prefix of the ids in the element, which makes them unique in the page. description: the
    text for screen readers.
    """
    labels = figure.axes[0].get_legend_handles_labels()[1]
    columns = max(1, min(3, LEGEND_WIDTH // (max(map(len, labels)) + HANDLE_WIDTH)))
    figure.set_figheight(HEIGHT + 0.18 * math.ceil(len(labels) / columns))
    figure.legend(loc="outside upper left", ncols=columns, handlelength=2.6)
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", facecolor="white", metadata=no_metadata)
    text = buffer.getvalue().partition("<svg ")[2]
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return Markup('<svg role="img" aria-label="{}" ').format(description) + Markup(text)


class Curve(NamedTuple):
    """A line through the points x, y (n,). label: its text in the legend."""

    label: str
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
            description = _ends(title, curves)
            yield title, _draw(curves, part, "optimizer step", label, description, smooth=True)
    for choices in VALIDATION:
        for name, label in choices.items():
            if curves := _read_curves(runs, "val", name):
                title = f"Validation: {label}"
                yield title, _draw(curves, f"val-{name}", "epoch", label, _ends(title, curves))
                break


def _ends(title: str, curves: Sequence[Curve]) -> str:
    ends = "; ".join(f"{curve.label} ends at {curve.y[-1]:.3f}" for curve in curves)
    return f"{title}: {ends}"


def _read_curves(runs: Sequence[Run], event: str, name: str) -> list[Curve]:
    """Return the curves of the runs that logged a value `name` more than once.

    event: "step" for values of training steps, "val" for scores of validations. The x of a
    validation is its epoch: the log counts epochs from 0, the curve from 1.
    """
    curves = []
    for run, style in zip(runs, assign_styles([run.kind for run in runs])):
        # A resumed run may have logged a step twice. The last entry counts.
        points = {e["step"]: e[name] for e in run.log if e["event"] == event and name in e}
        if len(points) > 1:
            x, y = np.array(sorted(points.items()), dtype=float).T
            curves.append(Curve(run.label, style, x + 1 if event == "val" else x, y))
    return curves


def draw_lengths(rows: Sequence[Row], language: str = "en") -> Markup:
    """Draw how many of each row's captions have 0, 1, 2... words, up to the 99th percentile."""
    curves = []
    for row, style in zip(rows, assign_styles([row.kind for row in rows])):
        lengths = np.array([count_words(text, language) for text in row.captions.values()])
        shares = 100 * np.bincount(lengths) / len(lengths)
        shares = shares[: math.ceil(np.quantile(lengths, 0.99)) + 1]
        label = f"{row.label}, mean {lengths.mean():.1f}"
        curves.append(Curve(label, style, np.arange(len(shares)), shares))
    description = "Words a caption: " + "; ".join(curve.label for curve in curves)
    return _draw(curves, "lengths", "words a caption", "captions (%)", description)


def moving_average(values: np.ndarray) -> np.ndarray:
    """Return values (n,), each averaged over a window of about n / 10 values around it.

    At both ends, the window has fewer values.
    """
    window = np.ones(2 * (len(values) // 20) + 1)
    counts = np.convolve(np.ones(len(values)), window, "same")  # the values in each window
    return np.convolve(values, window, "same") / counts


def _draw(
    curves: Sequence[Curve],
    name: str,
    x_label: str,
    y_label: str,
    description: str,
    smooth: bool = False,
) -> Markup:
    """Return a figure of curves.

    - name, description: see `to_svg`
    - smooth: whether moving averages are drawn, with the values faintly behind them
    """
    with figure_context():
        figure, ax = new_figure(x_label, y_label)
        for label, (colour, marker, dashes), x, y in curves:
            if smooth:
                ax.plot(x, y, color=colour, alpha=0.3, linewidth=0.8)
                marker, y = "", moving_average(y)
            ax.plot(x, y, dashes, marker=marker, markersize=4, color=colour, label=label)
        ax.locator_params("x", nbins=6, integer=True)
        return to_svg(figure, name, description)
