"""Compares the scores of two sets of captions of the same images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

import numpy as np

from captioning.data.caption_files import Captions, of_images
from captioning.metrics.base import Scores, all_metrics, metric_of
from captioning.metrics.intervals import RESAMPLES, mean_estimate, resampled_sums
from captioning.runtime import table
from captioning.runtime.errors import UserError


@dataclass(frozen=True)
class Difference:
    """The means of a metric in two sets of captions of n images, and their difference.

    - difference: second - first
    - low, high: the 95 % interval of the difference
    - p: two-sided p-value for the hypothesis that the mean difference is 0
    - n: the number of images that have both values

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
    if unmatched := set(map(str, first)) ^ set(map(str, second)):
        raise UserError(
            f"image_id {min(unmatched)!r} has a caption in only one of the two files: compare "
            "captions of the same images"
        )
    return of_images(first, second)


def compare(first: Scores, second: Scores) -> dict[str, Difference]:
    """Return {metric: difference} for the metrics that both scores have.

    Both scores have to be of the same images in the same order. If a metric has values per caption,
    the means of these values are compared, even if the metric's score of a set is no mean, as for
    BLEU. On the same images, most of the noise is common to both scores and cancels in the
    difference. Therefore the bootstrap resamples the difference per image (Koehn 2004, "Statistical
    significance tests for machine translation evaluation"; Efron & Tibshirani 1993, chapter 16).
    """
    differences = {}
    for name in dict.fromkeys([*all_metrics(), *first.per_caption]):
        if name in first.per_caption and name in second.per_caption:
            rows = zip(first.per_caption[name], second.per_caption[name])
            if pairs := [pair for pair in rows if None not in pair]:
                a, b = np.array(pairs, dtype=float).T  # (n,)
                mean = mean_estimate(b - a)
                p = p_value(b - a) if len(pairs) > 1 else None
                scores = (float(a.mean()), float(b.mean()), mean.value)
                differences[name] = Difference(*scores, mean.low, mean.high, p, len(pairs))
        elif name in first.metrics and name in second.metrics:
            a, b = first.metrics[name].value, second.metrics[name].value
            differences[name] = Difference(a, b, b - a, n=first.metrics[name].n)
    return differences


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
        metric = metric_of(name)
        form = f"{{:.{metric.decimals}f}}".format
        interval = "" if each.p is None else f"{form(each.low)} to {form(each.high)}"
        p = "" if each.p is None else f"{each.p:.3f}"
        cells = map(form, (each.first, each.second, each.difference))
        rows.append((metric.title, *cells, interval, p))
    note = (
        "means over captions with a value in both sets; p: paired bootstrap over images, two-sided"
    )
    return f"{table.format_table(rows)}\n{note}"
