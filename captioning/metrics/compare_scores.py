"""Two programs' captions of the same images, compared metric by metric.

The difference of two scores means little without its noise. On the same images most of the noise is
common to both and cancels, so the images are resampled in pairs (Koehn 2004, "Statistical
significance tests for machine translation evaluation"; Efron & Tibshirani 1993, chapter 16).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

import numpy as np

from captioning.data.caption_files import Captions, ImageId, by_id
from captioning.metrics.bootstrap import RESAMPLES, mean, resampled_means
from captioning.metrics.evaluator import Metric, Scores
from captioning.metrics.registry import METRICS, metric_of
from captioning.metrics.score_table import align
from captioning.runtime.errors import UserError


@dataclass(frozen=True)
class Difference:
    """Means over the n images with both values, and second - first with its 95 % interval.

    p: two-sided, for the hypothesis that the mean difference is 0. low, high and p are None for a
    single image, and for a metric that only a set of captions has.
    """

    first: float
    second: float
    difference: float
    low: Optional[float]
    high: Optional[float]
    p: Optional[float]
    n: int


def same_images(first: Captions, second: Captions) -> Captions:
    """Return the second captions under the ids, and in the order, of the first.

    Raises UserError for the first image that one of them lacks.
    """
    matched = by_id(first, second)
    for image_id, caption in matched.items():
        if caption == ():
            raise UserError(
                f"image_id {image_id!r} has a caption in the first file, none in the second"
            )
    if len(second) > len(first):
        known = {str(image_id) for image_id in first}
        extra = next((i for i in second if str(i) not in known), None)
        raise UserError(f"image_id {extra!r} has a caption in the second file, none in the first")
    return dict(matched)


def compare(first: Scores, second: Scores) -> dict[str, Difference]:
    """Return the difference of each metric that both have, by its name.

    Both are scores of the same images in one order. Where single captions have the metric, their
    means are compared, also for one such as BLEU, whose score of a set is not the mean.
    """
    columns = [_columns(scores.per_image) for scores in (first, second)]
    found = {
        name: _difference(*(np.array(c[name], dtype=float) for c in columns))
        for name in columns[0].keys() & columns[1].keys()
    }
    for name in first.metrics.keys() & second.metrics.keys() - found.keys():
        if name != "median_rank":  # the mean rank is compared instead
            values = [scores.metrics[name].value for scores in (first, second)]
            count = first.metrics[name].n
            found[name] = Difference(*values, values[1] - values[0], None, None, None, count)
    places = {name: place for place, name in enumerate(METRICS)}
    ordered = sorted(found, key=lambda name: (places.get(name, len(places)), name))
    return {name: found[name] for name in ordered}


def _columns(per_image: Mapping[ImageId, Mapping]) -> dict[str, list]:
    rows = list(per_image.values())
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: c for name, c in columns.items() if any(value is not None for value in c)}


def _difference(first, second):
    """nan stands for no value; an image counts if both have one."""
    both = ~np.isnan(first) & ~np.isnan(second)
    first, second = first[both], second[both]
    if not len(first):
        return Difference(*[float("nan")] * 3, None, None, None, 0)
    pairs = second - first
    estimate = mean(pairs)
    means = float(first.mean()), float(second.mean()), estimate.value
    if len(pairs) == 1:
        return Difference(*means, None, None, None, 1)
    return Difference(*means, estimate.low, estimate.high, p_value(pairs), len(pairs))


def p_value(differences: np.ndarray) -> float:
    """Return the share of resamples of the centred differences with a mean as far from 0.

    Two-sided, and never 0: the sample itself counts as one (Davison & Hinkley 1997, section 4.2.3).
    """
    found = abs(differences.mean())
    resampled = abs(resampled_means(differences - differences.mean()))
    # The tolerance covers rounding.
    return float((1 + (resampled >= found - 1e-12 * (1 + found)).sum()) / (1 + RESAMPLES))


def format_comparison(differences: Mapping[str, Difference]) -> str:
    """Return a line a metric: both means, the difference, its interval and p."""
    rows = [("", "first", "second", "difference", "95 % interval", "p")]
    for name, found in differences.items():
        metric = Metric(name, "Mean Rank", 1) if name == "rank" else metric_of(name)
        decimals = metric.decimals
        cells = [f"{value:.{decimals}f}" for value in (found.first, found.second, found.difference)]
        interval = p = ""
        if found.p is not None:
            interval = f"{found.low:.{decimals}f} to {found.high:.{decimals}f}"
            p = f"{found.p:.3f}"
        rows.append((metric.title, *cells, interval, p))
    note = "means over captions; p: paired bootstrap over images, two-sided"
    return f"{align(rows)}\n{note}"
