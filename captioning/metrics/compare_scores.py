"""Compares two sets of captions of the same images, metric by metric.

The difference of two scores has an interval, too. On the same images, most of the noise is common
to both scores and cancels in the difference. Therefore the bootstrap resamples the difference per
image (Koehn 2004, "Statistical significance tests for machine translation evaluation"; Efron &
Tibshirani 1993, chapter 16).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

import numpy as np

from captioning.data.caption_files import Captions, of_images
from captioning.metrics.bootstrap import RESAMPLES, mean_estimate, resampled_sums
from captioning.metrics.evaluator import Scores
from captioning.metrics.registry import METRICS, Metric, metric_of
from captioning.metrics.score_table import align
from captioning.runtime.errors import UserError


@dataclass(frozen=True)
class Difference:
    """The means of a metric in two sets of captions of n images, and their difference.

    difference: second - first. low, high: the 95 % interval of the difference. p: two-sided p-value
    for the hypothesis that the mean difference is 0. n: the number of images that have both values.
    low, high and p are None for a single image, and for a metric without values per caption: then
    the scores of the two sets are compared.
    """

    first: float
    second: float
    difference: float
    low: Optional[float] = None
    high: Optional[float] = None
    p: Optional[float] = None
    n: int = 0


def same_images(first: Captions, second: Captions) -> Captions:
    """Return the second captions with the ids and the order of the first captions.

    Raises UserError for an image that is missing in one of the two.
    """
    matched = of_images(first, second)
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
    """Return {metric: difference} for the metrics that both scores have.

    Both scores have to be of the same images in the same order. If a metric has values per caption,
    the means of these values are compared, even if the metric's score of a set is no mean, as for
    BLEU.
    """
    differences = {}
    for name in first.per_caption.keys() & second.per_caption.keys():
        a, b = (np.array(each.per_caption[name], dtype=float) for each in (first, second))
        if not (np.isnan(a).all() or np.isnan(b).all()):
            differences[name] = _compare_columns(a, b)
    for name in first.metrics.keys() & second.metrics.keys() - differences.keys():
        if name != "median_rank":  # the mean of `rank` is compared instead
            a, b = first.metrics[name].value, second.metrics[name].value
            differences[name] = Difference(a, b, b - a, n=first.metrics[name].n)
    ordered = sorted(sorted(differences), key=lambda name: (*METRICS, name).index(name))
    return {name: differences[name] for name in ordered}


def _compare_columns(first, second):
    """Return the `Difference` of two columns, one value per image; nan for a missing value."""
    in_both = ~np.isnan(first) & ~np.isnan(second)
    first, second = first[in_both], second[in_both]
    if not len(first):
        return Difference(math.nan, math.nan, math.nan)
    differences = second - first
    estimate = mean_estimate(differences)
    return Difference(
        float(first.mean()),
        float(second.mean()),
        estimate.value,
        low=estimate.low,
        high=estimate.high,
        p=p_value(differences) if len(differences) > 1 else None,
        n=len(differences),
    )


def p_value(differences: np.ndarray) -> float:
    """Return the two-sided bootstrap p-value of the mean difference. differences: (n,).

    The p-value is the share of resamples of the centred differences whose mean is at least as far
    from 0 as the observed mean. The sample itself counts as a resample, so that p is never 0
    (Davison & Hinkley 1997, section 4.2.3).
    """
    observed = abs(differences.mean())
    centred = differences - differences.mean()
    resampled = abs(resampled_sums(centred) / len(centred))
    # The tolerance allows for rounding errors.
    return float((1 + (resampled >= observed - 1e-12 * (1 + observed)).sum()) / (1 + RESAMPLES))


def format_comparison(differences: Mapping[str, Difference]) -> str:
    """Return one line per metric: both means, the difference, its interval and p."""
    rows = [("", "first", "second", "difference", "95 % interval", "p")]
    for name, each in differences.items():
        metric = Metric(name, "Mean Rank") if name == "rank" else metric_of(name)
        decimals = metric.decimals
        cells = [f"{value:.{decimals}f}" for value in (each.first, each.second, each.difference)]
        interval = p = ""
        if each.p is not None:
            interval = f"{each.low:.{decimals}f} to {each.high:.{decimals}f}"
            p = f"{each.p:.3f}"
        rows.append((metric.title, *cells, interval, p))
    note = (
        "means over captions with a value in both sets; p: paired bootstrap over images, two-sided"
    )
    return f"{align(rows)}\n{note}"
