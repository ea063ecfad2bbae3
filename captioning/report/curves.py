"""Training as it went: each part of the objectives by step, and validation scores by epoch."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from captioning.metrics.score_table import COLUMNS
from captioning.report.figures import Style, look, new_figure, styles, svg
from captioning.report.plane import DESCRIPTIVE
from captioning.report.runs import NAMES, Run

# Of each group the first that was logged is drawn.
VALIDATION = (("CIDEr", "Bleu_4"), ("true_facts", "cap_len"))
LABELS = {axis.metric: axis.label for axis in DESCRIPTIVE}


class Curve(NamedTuple):
    label: str
    style: Style
    x: np.ndarray
    y: np.ndarray


class Panel(NamedTuple):
    title: str
    drawing: Markup


def curves(runs: Sequence[Run]) -> list[Panel]:
    """A figure for each part of the objectives, then one or two of validation."""
    return [*_objectives(runs), *_validation(runs)]


def _objectives(runs: Sequence[Run]) -> Iterator[Panel]:
    for part, name in NAMES.items():
        lines = [line for line in _lines(runs, "step", part) if len(line.x) > 1]
        if not lines:
            continue
        title = f"{name} loss in training"
        smoothing = {
            run.config.label_smoothing for run in runs if any(part in event for event in run.log)
        }
        if part == "mle" and smoothing != {0}:
            title += f", labels smoothed by {' or '.join(f'{s:g}' for s in sorted(smoothing))}"
        drawing = _draw(lines, f"loss-{part}", title, "optimiser step", "nats a token", smooth=True)
        yield Panel(title, drawing)


def _validation(runs: Sequence[Run]) -> Iterator[Panel]:
    for choices in VALIDATION:
        found = ((name, _lines(runs, "val", name)) for name in choices)
        found = [(name, lines) for name, lines in found if any(len(li.x) > 1 for li in lines)]
        if found:
            name, lines = found[0]
            label = LABELS.get(name) or COLUMNS[name].title
            title = f"Validation: {label}"
            # Epochs are counted from 0 in the log.
            lines = [line._replace(x=line.x + 1) for line in lines]
            yield Panel(title, _draw(lines, f"val-{name}", title, "epoch", label, smooth=False))


def _lines(runs: Sequence[Run], event: str, name: str) -> list[Curve]:
    found = []
    for run, style in zip(runs, styles([run.kind for run in runs])):
        # A run that went on after a stop has logged some steps twice; the last time counts.
        points = {e["step"]: e[name] for e in run.log if e.get("event") == event and name in e}
        if points:
            x, y = zip(*sorted(points.items()))
            found.append(Curve(run.label, style, np.array(x), np.array(y, dtype=float)))
    return found


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean of a window around each value, a fifteenth of them wide and shorter at the ends."""
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
