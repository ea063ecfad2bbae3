"""How far a score could have come out otherwise on other images: percentile bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

RESAMPLES = 1000
SEED = 0
INTERVALS = f"95 % percentile bootstrap over images, {RESAMPLES} resamples, seed {SEED}"

_COUNTS_AT_ONCE = 2**20  # of 8 bytes: how many images of how many resamples are held in memory

Bounds = tuple[Optional[float], Optional[float]]


@dataclass(frozen=True)
class Estimate:
    """A score of n images and the ends of its 95 % interval, None where there is no interval."""

    value: float
    low: Optional[float]
    high: Optional[float]
    n: int


def mean(values: Sequence[float], scale: float = 1.0) -> Estimate:
    """Return the mean of one value an image, times `scale`. values: (n,), n >= 1."""
    return ratio(values, np.ones(len(values)), scale)


def ratio(
    numerators: Sequence[float], denominators: Sequence[float], scale: float = 1.0
) -> Estimate:
    """Return the sum of the numerators by that of the denominators, times `scale`; both (n,).

    The value is nan if the denominators' sum is 0; resamples where it is are left out.
    """
    columns = np.column_stack([numerators, denominators]).astype(float)  # (n, 2)

    def quotient(sums):
        with np.errstate(invalid="ignore", divide="ignore"):
            return scale * sums[:, :1] / sums[:, 1:]  # (R, 1)

    value = float(quotient(columns.sum(0, keepdims=True))[0, 0])
    return Estimate(value, *intervals(columns, quotient)[0], len(columns))


def median(values: Sequence[float]) -> Estimate:
    """Return the median of one value an image, with its interval. values: (n,), n >= 1."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    resamples = [np.median(values[drawn], axis=1) for drawn in _draws(n)]
    return Estimate(float(np.median(values)), *_bounds(np.concatenate(resamples), n), n)


def resampled_means(values: np.ndarray) -> np.ndarray:
    """Return (RESAMPLES,), the mean of each resample of one value an image. values: (n,)."""
    return _resampled_sums(np.asarray(values, dtype=float)[:, None])[:, 0] / len(values)


def intervals(columns: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> list[Bounds]:
    """Return the interval of each of m scores that depend on sums over images alone.

    columns: (n, k), what each image adds to k sums; statistic: (R, k) sums of R resamples to
    (R, m) scores, nan where one is not defined. Images are drawn with replacement, the same ones
    for all scores of n images (Efron & Tibshirani 1993, chapter 13).
    """
    scores = statistic(_resampled_sums(np.asarray(columns, dtype=float)))  # (R, m)
    return [_bounds(column[~np.isnan(column)], len(columns)) for column in scores.T]


def _resampled_sums(columns):
    """Return (RESAMPLES, k), the sums over resamples of n rows."""
    n = len(columns)
    sums = []
    for drawn in _draws(n):
        size = len(drawn)
        cells = drawn + n * np.arange(size)[:, None]
        counts = np.bincount(cells.ravel(), minlength=size * n).reshape(size, n)
        sums.append(counts @ columns)
    return np.concatenate(sums)


def _draws(n):
    """Yield the images that the resamples hold, (R, n) indices, RESAMPLES rows in all."""
    random = np.random.default_rng(SEED)
    at_once = max(1, _COUNTS_AT_ONCE // n)
    for start in range(0, RESAMPLES, at_once):
        yield random.integers(n, size=(min(at_once, RESAMPLES - start), n))


def _bounds(scores, n):
    if not len(scores) or n < 2:  # an image alone tells of no other
        return None, None
    low, high = np.percentile(scores, (2.5, 97.5))
    return float(low), float(high)
