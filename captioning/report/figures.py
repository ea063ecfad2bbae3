"""The page's figures as SVG: curves and lengths, with one style per objective."""

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from captioning.config.objectives import objective_title
from captioning.metrics.diversity import words
from captioning.report.runs import Run
from captioning.training.run_log import CURVES
from smile import OBJECTIVES

WIDTH, HEIGHT = 4.3, 3.2  # inches; about as wide as a phone
INK, FAINT = "#1c2733", "#c9d1d9"


class Style(NamedTuple):
    """How figures draw a row of the comparison. Styles also differ without colour."""

    colour: str
    marker: str
    dashes: str


# Groups of validation scores with their labels. The first logged score of each group is drawn.
VALIDATION = (
    {"CIDEr": "CIDEr", "Bleu_4": "BLEU-4"},
    {"true_facts": "true facts a caption", "cap_len": "words a caption"},
)
# Colours by Okabe and Ito, which colour-blind people can distinguish.
STYLES = {
    "humans": Style("#4a4f57", "D", "-"),
    "mle": Style("#0072b2", "o", "-"),
    "smile": Style("#d55e00", "s", "--"),
    "mixture": Style("#00805c", "^", "-."),
    "random": Style("#a8478a", "v", ":"),
    "reverse": Style("#8a6d00", "P", ":"),
    "weights": Style("#5b4bb5", "X", "-"),
}
# Styles for other objectives, and for further runs with the same objective.
SPARE = (
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

_LOOK = {
    "font.family": "DejaVu Sans",  # part of matplotlib; saved as outlines
    "font.size": 9.5,
    "svg.fonttype": "path",
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


def look():
    """The matplotlib context for all figures."""
    return matplotlib.rc_context(_LOOK)


def styles(kinds: Sequence[str]) -> list[Style]:
    """A style for each row. Styles repeat only after all spare styles are used."""
    spare, found = itertools.cycle(SPARE), []
    for index, kind in enumerate(kinds):
        known = kind in STYLES and kind not in kinds[:index]
        found.append(STYLES[kind] if known else next(spare))
    return found


def new_figure(height: float = HEIGHT) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a file in the format of its suffix, reproducibly."""
    undated = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, facecolor="white", dpi=150, metadata=undated)


def svg(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an <svg> element. name: a prefix that makes its ids unique in the page."""
    buffer = io.StringIO()
    with look():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"\n\s*", "\n", text)
    opening = Markup('<svg role="img" aria-label="{}" ').format(description)
    return opening + Markup(text[len("<svg ") :])


class Curve(NamedTuple):
    label: str
    style: Style
    x: np.ndarray
    y: np.ndarray


def curves(runs: Sequence[Run]) -> Iterator[tuple[str, Markup]]:
    """Yield (title, figure) of each objective's loss, of sampled captions, and of validations."""
    of_steps = {
        part: (f"{objective_title(part)} loss in training", "nats a token") for part in OBJECTIVES
    }
    for part, (title, label) in {**of_steps, **CURVES}.items():
        lines = [line for line in _lines(runs, "step", part) if len(line.x) > 1]
        if not lines:
            continue
        smoothing = {run.config.label_smoothing for run in runs if any(part in e for e in run.log)}
        if part == "mle" and smoothing != {0}:
            title += f", labels smoothed by {' or '.join(f'{s:g}' for s in sorted(smoothing))}"
        name = part if part in CURVES else f"loss-{part}"
        yield title, _draw(lines, name, title, "optimiser step", label, smooth=True)
    for choices in VALIDATION:
        for name, label in choices.items():
            lines = _lines(runs, "val", name)
            if any(len(line.x) > 1 for line in lines):
                title = f"Validation: {label}"
                # Epochs are counted from 0 in the log.
                lines = [line._replace(x=line.x + 1) for line in lines]
                yield title, _draw(lines, f"val-{name}", title, "epoch", label, smooth=False)
                break


def _lines(runs: Sequence[Run], event: str, name: str) -> list[Curve]:
    found = []
    for run, style in zip(runs, styles([run.kind for run in runs])):
        # A resumed run has logged some steps twice. The last entry counts.
        points = {e["step"]: e[name] for e in run.log if e.get("event") == event and name in e}
        if points:
            x, y = zip(*sorted(points.items()))
            found.append(Curve(run.label, style, np.array(x), np.array(y, dtype=float)))
    return found


def smoothed(values: np.ndarray) -> np.ndarray:
    """Moving average. The window has 1/15 of the values, and is narrower at both ends."""
    reach = -(-len(values) // 30)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.maximum(np.arange(len(values)) - reach, 0)
    last = np.minimum(np.arange(len(values)) + reach + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _draw(lines: list[Curve], name: str, title: str, across: str, up: str, smooth: bool) -> Markup:
    with look():
        figure = new_figure()
        ax = figure.add_subplot()
        for label, style, x, y in lines:
            if smooth:
                ax.plot(x, y, color=style.colour, alpha=0.3, linewidth=0.8)
                ax.plot(x, smoothed(y), style.dashes, color=style.colour, label=label)
            else:
                ax.plot(x, y, style.dashes, marker=style.marker, color=style.colour, label=label)
        ax.grid()
        ax.set_xlabel(across)
        ax.set_ylabel(up)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        figure.legend(loc="outside upper left", ncols=min(len(lines), 3), handlelength=2.6)
        ends = "; ".join(f"{line.label} ends at {line.y[-1]:.3f}" for line in lines)
        return svg(figure, name, f"{title}, {up} by {across}: {ends}")


def length_histogram(groups: Sequence[tuple[str, str, Iterable[str]]]) -> Markup:
    """A figure of (label, kind, captions) groups, below each other with the same scale."""
    lengths = [np.array([words(caption) for caption in captions]) for _, _, captions in groups]
    # The axis ends at the 99th percentile. Longer captions are counted in the last bin.
    longest = max(1, *(np.quantile(group, 0.99, method="inverted_cdf") for group in lengths))
    described = []
    with look():
        figure = new_figure(0.75 + 0.72 * len(groups))
        axes = figure.subplots(len(groups), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for ax, (label, _, _), style, group in zip(
            axes, groups, styles([kind for _, kind, _ in groups]), lengths
        ):
            shown, counts = np.unique(np.minimum(group, longest), return_counts=True)
            mean = group.mean()
            ax.bar(shown, 100 * counts / len(group), 0.82, color=style.colour)
            ax.axvline(mean, color=INK, linewidth=1, linestyle=(0, (3, 2)))
            ax.set_title(label, fontsize=9, pad=3)
            ax.set_title(f"mean {mean:.1f}", fontsize=8.5, pad=3, loc="right", fontweight="normal")
            ax.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
            ax.tick_params(axis="y", labelsize=8)
            ax.spines["left"].set_visible(False)
            ax.grid(axis="y", color=FAINT, linewidth=0.6)
            described.append(f"{label} {mean:.1f}")
        axes[-1].set_xlabel("words a caption")
        axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        figure.supylabel("captions (%)", fontsize=9.5)
        description = f"Words a caption, on average: {', '.join(described)}"
        return svg(figure, "lengths", description)
