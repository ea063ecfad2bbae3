"""Intervals against theory, and against resampling done image by image."""

import math

import numpy as np
import pytest

from captioning.metrics import bootstrap
from captioning.metrics.bootstrap import Estimate, intervals, mean, median, ratio


def test_interval_of_a_mean_is_that_of_theory():
    values = np.random.default_rng(1).normal(3.0, 2.0, 2000)
    estimate = mean(10 * values)
    half = 1.96 * 10 * values.std() / math.sqrt(2000)
    assert estimate.value == pytest.approx(10 * values.mean()) and estimate.n == 2000
    # The ends are percentiles of 1000 draws, which are themselves some 5 % off.
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.15)
    assert estimate.value - estimate.low == pytest.approx(half, rel=0.15)


def test_interval_of_a_ratio_is_that_of_naive_resampling():
    random = np.random.default_rng(2)
    below = random.integers(1, 9, 60)
    above = random.binomial(below, 0.3)
    estimate = ratio(above, below)
    assert estimate.value == above.sum() / below.sum()
    drawn = np.random.default_rng(3)
    scores = []
    for _ in range(20000):
        images = [drawn.integers(60) for _ in range(60)]
        scores.append(sum(above[i] for i in images) / sum(below[i] for i in images))
    expected = np.percentile(scores, [2.5, 97.5])
    width = expected[1] - expected[0]
    assert [estimate.low, estimate.high] == pytest.approx(expected, abs=0.07 * width)


def test_ends_are_percentiles_of_whole_resamples():
    # Of two images half of the resamples hold both, and a quarter each of them twice.
    assert mean([0.0, 1.0]) == Estimate(0.5, 0.0, 1.0, 2)
    assert mean([4.0]) == Estimate(4.0, None, None, 1) == median([4.0])
    rare = mean([1.0] + [0.0] * 199)  # P(at most 3 times) = 0.981
    assert (rare.low, rare.high) == (0.0, 3 / 200)


def test_a_median_and_its_interval():
    estimate = median(np.random.default_rng(1).permutation(np.arange(1, 402)))
    assert estimate.value == 201 and estimate.n == 401
    half = 1.96 * 401 / (2 * np.sqrt(401))  # of a uniform distribution
    assert [201 - estimate.low, estimate.high - 201] == pytest.approx([half, half], rel=0.15)


def test_a_score_that_is_not_defined():
    nothing = ratio([0, 0], [0, 0])
    assert math.isnan(nothing.value) and nothing.low is nothing.high is None
    # A quarter of the resamples hold the first image alone, and are left out.
    assert ratio([0, 3], [0, 6]) == Estimate(0.5, 0.5, 0.5, 2)


def test_scores_of_the_same_images_share_their_resamples():
    columns = np.random.default_rng(4).random((40, 1))
    alone = intervals(columns, lambda sums: sums)
    both = intervals(np.hstack([columns, -columns]), lambda sums: sums)
    assert both[0] == pytest.approx(alone[0], rel=1e-12)
    assert both[1] == pytest.approx((-alone[0][1], -alone[0][0]), rel=1e-12)


def test_resamples_do_not_depend_on_how_many_are_held_at_once(monkeypatch):
    values = np.random.default_rng(5).random(101)
    before = mean(values)
    monkeypatch.setattr(bootstrap, "_COUNTS_AT_ONCE", 7 * 101)
    after = mean(values)
    assert (after.low, after.high) == pytest.approx((before.low, before.high), rel=1e-12)
