"""Draws the report's curves and histograms of caption lengths as SVG, and defines their styles."""

import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from captioning.config.objectives import objective_title
from captioning.metrics.diversity import count_words
from captioning.report.comparison import Row
from captioning.report.runs import Run
from captioning.training.run_log import CURVES
from smile import OBJECTIVES

WIDTH, HEIGHT = 4.3, 3.2  # inches; about as wide as a phone
MAX_LEGEND_LENGTH, HANDLE_LENGTH = 66, 8  # of a line and a handle, in characters
INK, FAINT = "#1c2733", "#c9d1d9"


class Style(NamedTuple):
    """How a row of the comparison looks in all figures. Styles differ even without colour.

    marker, dashes: matplotlib's codes for the shape of points and for the line.
    """

    colour: str
    marker: str
    dashes: str


# Groups {score: label} of validation scores. One figure is drawn per group: for the first of its
# scores that a run has logged in more than one epoch.
VALIDATION = (
    {"CIDEr": "CIDEr", "Bleu_4": "BLEU-4"},
    {"true_facts": "true facts a caption", "cap_len": "words a caption"},
)
# {kind of a row: style}, see `captioning.report.runs.Run`. The colours follow Okabe and Ito's
# palette, which colour-blind people can distinguish.
STYLES = {
    "humans": Style("#4a4f57", "D", "-"),
    "mle": Style("#0072b2", "o", "-"),
    "smile": Style("#d55e00", "s", "--"),
    "mixture": Style("#00805c", "^", "-."),
    "random": Style("#a8478a", "v", ":"),
    "reverse": Style("#8a6d00", "P", ":"),
    "weights": Style("#5b4bb5", "X", "-"),
}
# Styles for kinds that are not in STYLES, and for further runs of the same kind.
EXTRA_STYLES = (
    Style("#3d87c4", "<", ":"),
    Style("#7d2a56", ">", "--"),
    Style("#56700f", "h", "-."),
    Style("#8c4a1f", "p", "-"),
    Style("#2a7f86", "d", "--"),
    Style("#b23a48", "*", ":"),
    Style("#4b5d9b", "p", "-."),
    Style("#6f6f6f", "8", "--"),
    Style("#9a5fb5", "h", ":"),
    Style("#b07d00", "d", "-"),
)

RC_PARAMS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
    "svg.fonttype": "path",  # text is saved as outlines, so that the page needs no font
    "svg.hashsalt": "report",
    "text.parse_math": False,  # folder names may contain dollar signs
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.8),
    **dict.fromkeys(("xtick.major.width", "ytick.major.width"), 0.8),
    "axes.edgecolor": "#7a8591",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#e4e8ec",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
}


def figure_context():
    """Return a context manager that sets RC_PARAMS. All figures are drawn within this context."""
    return matplotlib.rc_context(RC_PARAMS)


def assign_styles(kinds: Sequence[str]) -> list[Style]:
    """Return a style for each row. kinds: the rows' kinds.

    The first row of a kind gets its style from STYLES, if there is one. Other rows get
    EXTRA_STYLES, which are repeated if there are more rows than styles.
    """
    own_styles, extra_styles = dict(STYLES), itertools.cycle(EXTRA_STYLES)
    return [own_styles.pop(kind, None) or next(extra_styles) for kind in kinds]


def new_figure(height: float = HEIGHT) -> Figure:
    """Return an empty figure of the page's width. height: in inches."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def add_legend(figure: Figure, labels: Sequence[str]) -> None:
    """Put the legend of all axes above them, in as many columns as fit, and make room for it."""
    columns = max(1, min(3, MAX_LEGEND_LENGTH // (max(map(len, labels)) + HANDLE_LENGTH)))
    figure.set_figheight(figure.get_figheight() + 0.18 * (math.ceil(len(labels) / columns) - 1))
    figure.legend(loc="outside upper left", ncols=columns, handlelength=2.6)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix.

    An SVG is written without a date, so that the same figure always gives the same file.
    """
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, facecolor="white", dpi=150, metadata=metadata)


def to_svg(figure: Figure, name: str, description: str) -> Markup:
    """Return a figure as an <svg> element.

    name: a prefix of the ids in the element, which makes them unique in the page. description: the
    text for screen readers.
    """
    buffer = io.StringIO()
    with figure_context():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().partition("<svg ")[2]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return Markup('<svg role="img" aria-label="{}" ').format(description) + Markup(text)


class Curve(NamedTuple):
    label: str
    style: Style
    x: np.ndarray
    y: np.ndarray


def draw_curves(runs: Sequence[Run]) -> Iterator[tuple[str, Markup]]:
    """Yield (title, figure) for each objective's loss, for CURVES, and for validation scores.

    Figures without data are left out.
    """
    objective_curves = {
        part: (f"{objective_title(part)} loss in training", "nats a token") for part in OBJECTIVES
    }
    for part, (title, label) in {**objective_curves, **CURVES}.items():
        curves = [curve for curve in _read_curves(runs, "step", part) if len(curve.x) > 1]
        if not curves:
            continue
        smoothing = {run.config.label_smoothing for run in runs if any(part in e for e in run.log)}
        if part == "mle" and smoothing != {0}:
            title += f", labels smoothed by {' or '.join(f'{s:g}' for s in sorted(smoothing))}"
        drawing = _draw(curves, part, title, x_label="optimizer step", y_label=label, smooth=True)
        yield title, drawing
    for choices in VALIDATION:
        for name, label in choices.items():
            curves = _read_curves(runs, "val", name)
            if any(len(curve.x) > 1 for curve in curves):
                title = f"Validation: {label}"
                yield title, _draw(curves, f"val-{name}", title, x_label="epoch", y_label=label)
                break


def _read_curves(runs: Sequence[Run], event: str, name: str) -> list[Curve]:
    """Return the curves of the runs that logged a value `name`.

    event: "step" for values of training steps, "val" for scores of validations. The x of a
    validation is its epoch: the log counts epochs from 0, the curve from 1.
    """
    curves = []
    for run, style in zip(runs, assign_styles([run.kind for run in runs])):
        # A resumed run may have logged a step twice. The last entry counts.
        points = {e["step"]: e[name] for e in run.log if e.get("event") == event and name in e}
        if points:
            x = np.array(sorted(points))
            y = np.array([points[step] for step in sorted(points)], dtype=float)
            curves.append(Curve(run.label, style, x + 1 if event == "val" else x, y))
    return curves


def moving_average(values: np.ndarray) -> np.ndarray:
    """Return values (n,), each averaged over a window of about n / 15 values around it.

    At both ends, the window has fewer values.
    """
    half_width = math.ceil(len(values) / 30)
    window = np.ones(2 * half_width + 1)
    sums = np.convolve(values, window)
    counts = np.convolve(np.ones(len(values)), window)  # the numbers of values in each window
    return (sums / counts)[half_width:-half_width]


def _draw(
    curves: list[Curve],
    name: str,
    title: str,
    x_label: str,
    y_label: str,
    smooth: bool = False,
) -> Markup:
    """Return a figure of curves. name: see `to_svg`.

    smooth: whether moving averages are drawn, with the values themselves only faintly behind them.
    """
    with figure_context():
        figure = new_figure()
        ax = figure.add_subplot()
        for label, style, x, y in curves:
            if smooth:
                ax.plot(x, y, color=style.colour, alpha=0.3, linewidth=0.8)
                ax.plot(x, moving_average(y), style.dashes, color=style.colour, label=label)
            else:
                ax.plot(x, y, style.dashes, marker=style.marker, color=style.colour, label=label)
        ax.grid()
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        add_legend(figure, [curve.label for curve in curves])
        ends = "; ".join(f"{curve.label} ends at {curve.y[-1]:.3f}" for curve in curves)
        return to_svg(figure, name, f"{title}, {y_label} by {x_label}: {ends}")


def length_histogram(rows: Sequence[Row]) -> Markup:
    """Draw a histogram of the lengths of each row's captions."""
    lengths_of = [np.array(list(map(count_words, row.captions.values()))) for row in rows]
    # The axis ends at the 99th percentile. Longer captions are counted in the last bin.
    last_bin = max(1, *(np.quantile(each, 0.99, method="inverted_cdf") for each in lengths_of))
    descriptions = []
    with figure_context():
        figure = new_figure(0.75 + 0.72 * len(rows))
        axes = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        styles = assign_styles([row.kind for row in rows])
        for ax, row, style, lengths in zip(axes, rows, styles, lengths_of):
            bins, counts = np.unique(np.minimum(lengths, last_bin), return_counts=True)
            mean = lengths.mean()
            ax.bar(bins, 100 * counts / len(lengths), 0.82, color=style.colour)
            ax.axvline(mean, color=INK, linewidth=1, linestyle=(0, (3, 2)))
            ax.set_title(row.label, fontsize=9, pad=3)
            ax.set_title(f"mean {mean:.1f}", fontsize=8.5, pad=3, loc="right", fontweight="normal")
            ax.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
            ax.tick_params(axis="y", labelsize=8)
            ax.spines["left"].set_visible(False)
            ax.grid(axis="y", color=FAINT, linewidth=0.6)
            descriptions.append(f"{row.label} {mean:.1f}")
        axes[-1].set_xlabel("words a caption")
        axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        figure.supylabel("captions (%)", fontsize=9.5)
        description = f"Words a caption, on average: {', '.join(descriptions)}"
        return to_svg(figure, "lengths", description)
