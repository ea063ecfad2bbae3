"""Former names of `intervals`, for the metrics that still use them."""

from collections.abc import Callable, Iterator
from typing import Optional

import numpy as np

from captioning.metrics.intervals import (
    INTERVALS,
    RESAMPLES,
    SEED,
    Estimate,
    mean_estimate,
    median_estimate,
    ratio_estimate,
    resampled_sums,
)

Interval = tuple[Optional[float], Optional[float]]  # (low, high) of an interval
__all__ = ["INTERVALS", "Estimate", "mean_estimate", "median_estimate", "ratio_estimate"]


def bootstrap_intervals(
    columns: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> list[Interval]:
    scores = statistic(resampled_sums(np.asarray(columns, dtype=float)))  # (R, m)
    return percentile_intervals(scores, len(columns))


def percentile_intervals(scores: np.ndarray, n: int) -> list[Interval]:
    return [_percentile_interval(column[~np.isnan(column)], n) for column in scores.T]


def resampled_counts(n: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(SEED)
    draws = [np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(RESAMPLES)]
    yield np.array(draws)


def _percentile_interval(scores, n):
    """Return the interval of one score. scores: the scores of the resamples, without nan."""
    if not len(scores) or n < 2:  # a single image has no variance
        return None, None
    low, high = np.percentile(scores, (2.5, 97.5))
    return float(low), float(high)
