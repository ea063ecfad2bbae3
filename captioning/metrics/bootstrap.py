"""Computes scores of sets of images, with percentile bootstrap intervals over the images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

RESAMPLES = 1000
SEED = 0
INTERVALS = f"95 % percentile bootstrap over images, {RESAMPLES} resamples, seed {SEED}"

_MAX_BLOCK_SIZE = 2**20  # the maximum of resamples * images in a block, 8 bytes each

Interval = tuple[Optional[float], Optional[float]]  # (low, high) of an interval


@dataclass(frozen=True)
class Estimate:
    """A score over n images. low, high: the 95 % interval of the score; None without interval."""

    value: float
    low: Optional[float] = None
    high: Optional[float] = None
    n: Optional[int] = None


def mean_estimate(values: Sequence[Optional[float]]) -> Estimate:
    """Return the mean of one value per image. None values are left out. values: (n,), n >= 1."""
    sums = [0.0 if value is None else value for value in values]
    counts = [0 if value is None else 1 for value in values]
    return ratio_estimate(sums, counts)


def ratio_estimate(
    numerators: Sequence[float], denominators: Sequence[float], scale: float = 1.0
) -> Estimate:
    """Return sum(numerators) / sum(denominators) * scale; both (n,).

    A numerator has to be 0 where its denominator is 0. The value is nan if the sum of the
    denominators is 0. The interval leaves out resamples for which this sum is 0.
    """
    columns = np.column_stack([numerators, denominators]).astype(float)  # (n, 2)

    def quotient(sums):
        with np.errstate(invalid="ignore", divide="ignore"):
            return scale * sums[:, :1] / sums[:, 1:]  # (R, 1)

    value = float(quotient(columns.sum(0, keepdims=True))[0, 0])
    [(low, high)] = bootstrap_intervals(columns, quotient)
    return Estimate(value, low, high, len(columns))


def median_estimate(values: Sequence[float]) -> Estimate:
    """Return the median of one value per image, with its interval. values: (n,), n >= 1."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    resamples = [np.median(values[indices], axis=1) for indices in _resampled_indices(n)]
    low, high = _percentile_interval(np.concatenate(resamples), n)
    return Estimate(float(np.median(values)), low, high, n)


def bootstrap_intervals(
    columns: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> list[Interval]:
    """Return the bootstrap intervals of m scores that are functions of sums over images.

    columns: (n, k), the contribution of each image to k sums. statistic: maps the sums of R
    resamples, (R, k), to scores, (R, m); nan if undefined. Images are sampled with replacement
    (Efron & Tibshirani 1993, chapter 13). The resamples depend only on n, so that two metrics or
    captioners on n images get the same resamples.
    """
    scores = statistic(resampled_sums(np.asarray(columns, dtype=float)))  # (R, m)
    return percentile_intervals(scores, len(columns))


def percentile_intervals(scores: np.ndarray, n: int) -> list[Interval]:
    """Return the intervals of m scores over n images.

    scores: of R resamples (R, m); nan if undefined.
    """
    return [_percentile_interval(column[~np.isnan(column)], n) for column in scores.T]


def resampled_sums(columns: np.ndarray) -> np.ndarray:
    """Return the sums of each resample (RESAMPLES, ...). columns: (n, ...), one row per image."""
    return np.concatenate([counts @ columns for counts in resampled_counts(len(columns))])


def resampled_counts(n: int) -> Iterator[np.ndarray]:
    """Yield how often each image occurs in each resample, in blocks (R, n) of RESAMPLES rows."""
    for indices in _resampled_indices(n):
        rows = len(indices)
        cells = indices + n * np.arange(rows)[:, None]  # numbers the cells of the block (R, n)
        yield np.bincount(cells.ravel(), minlength=rows * n).reshape(rows, n)


def _resampled_indices(n):
    """Yield the indices of the images in each resample, in blocks (R, n) of RESAMPLES rows."""
    rng = np.random.default_rng(SEED)
    block_rows = max(1, _MAX_BLOCK_SIZE // n)
    for start in range(0, RESAMPLES, block_rows):
        yield rng.integers(n, size=(min(block_rows, RESAMPLES - start), n))


def _percentile_interval(scores, n):
    """Return the interval of one score. scores: the scores of the resamples, without nan."""
    if not len(scores) or n < 2:  # a single image has no variance
        return None, None
    low, high = np.percentile(scores, (2.5, 97.5))
    return float(low), float(high)
