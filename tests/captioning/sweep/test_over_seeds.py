"""Runs of several seeds in one line: the mean, and an interval that neither part of it hides."""

import numpy as np
import pytest

from captioning.metrics.bootstrap import Estimate, mean
from captioning.report.comparison import Row
from captioning.sweep.over_seeds import mean_over_seeds


def row(**metrics):
    return Row("a run", "smile", {1: "a dog"}, metrics)


def test_the_mean_and_both_variances():
    rows = [
        row(
            CIDEr=Estimate(value, value - 0.98, value + 0.98, 300),
            lex_div=Estimate(1, None, None, 300),
        )
        for value in (11.0, 12.0, 16.0)
    ]
    rows[0].metrics["PPL"] = Estimate(5, 4, 6, 300)  # which the others have not
    found = mean_over_seeds(rows, "SMILE")
    assert (found.label, found.kind, set(found.metrics)) == ("SMILE", "smile", {"CIDEr", "lex_div"})
    # Images: (1.96 / 3.92) ** 2 = 0.25; seeds: 7, by three, of which two degrees are left.
    reach = (1.96**2 * 0.25 + 4.303**2 * 7 / 3) ** 0.5
    cider = found.metrics["CIDEr"]
    assert (cider.value, cider.n) == (13.0, 300)
    assert (cider.low, cider.high) == pytest.approx((13 - reach, 13 + reach))
    assert found.metrics["lex_div"] == Estimate(1, None, None, 300)
    assert mean_over_seeds(rows[:1], "SMILE") is rows[0]


def test_a_share_is_not_below_zero():
    found = mean_over_seeds([row(loops=Estimate(v, 0.0, 2 * v, 9)) for v in (0.0, 0.0, 3.0)], "")
    assert found.metrics["loops"].low == 0 < 2 < found.metrics["loops"].high


@pytest.mark.parametrize(("seeds", "scale"), [(8, 0.1), (3, 0.1), (3, 0.5), (2, 0.5)])
def test_it_covers_the_truth_as_often_as_it_says(seeds, scale):
    """Of runs that differ by seed, on images that they share: about 95 times in a hundred."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        images = random.normal(-9, size=80)
        rows = [
            row(x=mean(images + random.normal(scale=scale) + random.normal(scale=0.3, size=80)))
            for _ in range(seeds)
        ]
        found = mean_over_seeds(rows, "")
        covered += found.metrics["x"].low < -9 < found.metrics["x"].high
    assert 180 <= covered <= 199
