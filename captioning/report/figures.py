"""What the figures have in common: one look, one colour an objective, SVG that stands in a page."""

import io
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.3, 3.2  # inches: a phone shows them at about this size
INK, FAINT = "#1c2733", "#c9d1d9"


class Style(NamedTuple):
    """How a row of the comparison is drawn, the same in every figure, also without colour."""

    colour: str
    marker: str
    dashes: str


# Okabe and Ito's colours, which colour-blind people tell apart.
STYLES = {
    "humans": Style("#4a4f57", "D", "-"),
    "mle": Style("#0072b2", "o", "-"),
    "smile": Style("#d55e00", "s", "--"),
    "mixture": Style("#00805c", "^", "-."),
    "random": Style("#a8478a", "v", ":"),
    "reverse": Style("#8a6d00", "P", ":"),
    "weights": Style("#5b4bb5", "X", "-"),
}
# For the second run of one kind, and the third ...
SPARE = (
    Style("#3d87c4", "<", ":"),
    Style("#7d2a56", ">", "--"),
    Style("#56700f", "h", "-."),
    Style("#8c4a1f", "p", "-"),
    Style("#2a7f86", "d", "--"),
)

_LOOK = {
    "font.family": "DejaVu Sans",  # comes with matplotlib; written as outlines
    "font.size": 9.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "report",
    "text.parse_math": False,  # a folder's name may hold a dollar sign
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#7a8591",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.8,
    "ytick.major.width": 0.8,
    "grid.color": "#e4e8ec",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
}


def look():
    """The context in which every figure is made."""
    return matplotlib.rc_context(_LOOK)


def styles(kinds: Sequence[str]) -> list[Style]:
    """A style for each row, none of them twice while there are spare ones."""
    spare, found = itertools.cycle(SPARE), []
    for index, kind in enumerate(kinds):
        found.append(next(spare) if kind in kinds[:index] else STYLES[kind])
    return found


def new_figure(height: float = HEIGHT) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def svg(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an <svg> element; `name` keeps its ids apart from those of other figures."""
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
