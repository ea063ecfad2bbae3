"""Scores of sets of images, with 95 % percentile bootstrap intervals over the images.

Images are sampled with replacement (Efron & Tibshirani 1993, chapter 13). The resamples depend only
on the number of images, so that two metrics or captioners on the same images get the same ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

RESAMPLES = 1000
SEED = 0
INTERVALS = f"95 % percentile bootstrap over images, {RESAMPLES} resamples, seed {SEED}"


@dataclass(frozen=True)
class Estimate:
    """A score over n images. low, high: the 95 % interval of the score; None without interval."""

    value: float
    low: Optional[float] = None
    high: Optional[float] = None
    n: Optional[int] = None


def estimates(columns: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> list[Estimate]:
    """Return m scores that are functions of sums over images, with their intervals.

    - columns: (n, k), the contribution of each image to k sums
    - statistic: maps R rows of sums (R, k) to scores (R, m); nan if undefined. The interval leaves
      out undefined resamples
    """
    columns = np.asarray(columns, dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = statistic(columns.sum(0, keepdims=True))[0]  # (m,)
        scores = statistic(resampled_sums(columns))  # (R, m)
    return [_estimate(*pair, len(columns)) for pair in zip(values, scores.T)]


def ratio_estimate(
    numerators: Sequence[float], denominators: Sequence[float], scale: float = 1.0
) -> Estimate:
    """Return sum(numerators) / sum(denominators) * scale; both (n,). nan if it is undefined.

    A numerator has to be 0 where its denominator is 0.
    """
    columns = np.column_stack([numerators, denominators])
    [estimate] = estimates(columns, lambda sums: scale * sums[:, :1] / sums[:, 1:])
    return estimate


def mean_estimate(values: Sequence[Optional[float]]) -> Estimate:
    """Return the mean of one value per image. None values are left out. values: (n,), n >= 1."""
    sums = [0.0 if value is None else value for value in values]
    return ratio_estimate(sums, [value is not None for value in values])


def median_estimate(values: Sequence[float]) -> Estimate:
    """Return the median of one value per image. values: (n,), n >= 1."""
    values = np.asarray(values, dtype=float)
    medians = np.array([np.median(values[indices]) for indices in _resamples(len(values))])
    return _estimate(np.median(values), medians, len(values))


def resampled_sums(columns: np.ndarray) -> np.ndarray:
    """Return the sums of each resample (RESAMPLES, ...). columns: (n, ...), one row per image."""
    n = len(columns)
    counts = (np.bincount(indices, minlength=n) for indices in _resamples(n))
    return np.stack([count @ columns for count in counts])


def _resamples(n: int) -> Iterator[np.ndarray]:
    """Yield the indices (n,) of the images in each resample."""
    rng = np.random.default_rng(SEED)
    return (rng.integers(n, size=n) for _ in range(RESAMPLES))


def _estimate(value: float, scores: np.ndarray, n: int) -> Estimate:
    """Return a score with its interval. scores: (R,), of the resamples; nan if undefined."""
    scores = scores[~np.isnan(scores)]
    if not len(scores) or n < 2:  # a single image has no variance
        return Estimate(float(value), n=n)
    return Estimate(float(value), *map(float, np.percentile(scores, (2.5, 97.5))), n)
