"""Intervals against theory and naive resampling."""

import math

import numpy as np
import pytest

from captioning.metrics.intervals import Estimate, mean_estimate, median_estimate, ratio_estimate


def test_the_interval_of_a_median_is_that_of_theory():
    found = median_estimate(np.random.default_rng(1).permutation(np.arange(1, 402)))
    half = 1.96 * 401 / (2 * np.sqrt(401))  # of a uniform distribution
    assert (found.value, found.n) == (201, 401)
    assert (201 - found.low, found.high - 201) == pytest.approx((half, half), rel=0.15)


def test_interval_of_a_ratio_is_that_of_naive_resampling():
    random = np.random.default_rng(2)
    below = random.integers(1, 9, 60)
    above = random.binomial(below, 0.3)
    estimate = ratio_estimate(above, below)
    assert estimate.value == above.sum() / below.sum()
    images = np.random.default_rng(3).integers(60, size=(20000, 60))
    low, high = np.percentile(above[images].sum(1) / below[images].sum(1), [2.5, 97.5])
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.07 * (high - low))


def test_ends_are_percentiles_of_whole_resamples():
    # Of two images half of the resamples hold both, and a quarter each of them twice.
    assert mean_estimate([0.0, 1.0]) == Estimate(0.5, 0.0, 1.0, 2)
    assert mean_estimate([4.0]) == Estimate(4.0, None, None, 1) == median_estimate([4.0])
    rare = mean_estimate([1.0] + [0.0] * 199)  # P(at most 3 times) = 0.981
    assert (rare.low, rare.high) == (0.0, 3 / 200)
    nothing = ratio_estimate([0, 0], [0, 0])
    assert math.isnan(nothing.value) and nothing.low is nothing.high is None
    # A quarter of the resamples hold the first image alone, and are left out.
    assert ratio_estimate([0, 3], [0, 6]) == Estimate(0.5, 0.5, 0.5, 2)
