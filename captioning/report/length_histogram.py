"""How long the captions are: a small histogram for the people and for each run."""

from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from captioning.metrics.diversity import words
from captioning.report.figures import FAINT, INK, look, new_figure, styles, svg


def length_histogram(groups: Sequence[tuple[str, str, Iterable[str]]]) -> Markup:
    """The figure of (label, kind, captions) groups, one below the other on one scale."""
    lengths = [np.array([words(caption) for caption in captions]) for _, _, captions in groups]
    # All but a hundredth of each group keep to it; longer ones are drawn there.
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
