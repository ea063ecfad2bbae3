"""Means over seeds, against values computed by hand, and which runs the line of mixtures joins."""

from pathlib import Path

import pytest

from captioning.config import load_config
from captioning.metrics.intervals import Estimate
from captioning.report.runs import Run
from captioning.sweep.comparison import mean_over_seeds, mixtures_by_weight


def make_run(label="a run", config=None, kind="smile", **metrics):
    return Run(
        Path("run"), label, kind, config, config, {1: "a dog"}, metrics, {}, [], {}, {}, [], None
    )


def test_means_over_seeds_have_intervals_over_images_and_seeds():
    lex_div = Estimate(1, None, None, 300)
    estimates = [Estimate(value, value - 0.98, value + 0.98, 300) for value in (11.0, 12.0, 16.0)]
    runs = [make_run(CIDEr=estimate, lex_div=lex_div) for estimate in estimates]
    runs[0].metrics["PPL"] = Estimate(5, 4, 6, 300)  # the others lack it
    found = mean_over_seeds(runs, "SMILE")
    assert (found.label, found.kind, set(found.metrics)) == ("SMILE", "smile", {"CIDEr", "lex_div"})
    # Images: (1.96 / 3.92) ** 2 = 0.25; seeds: 7, by three, of which two degrees are left.
    reach = (1.96**2 * 0.25 + 4.303**2 * 7 / 3) ** 0.5
    cider = found.metrics["CIDEr"]
    assert (cider.value, cider.n) == (13.0, 300)
    assert (cider.low, cider.high) == pytest.approx((13 - reach, 13 + reach), rel=1e-4)
    assert found.metrics["lex_div"] == Estimate(1, None, None, 300)
    assert mean_over_seeds(runs[:1], "one").metrics is runs[0].metrics
    shares = [make_run(loops=Estimate(v, 0.0, 2 * v, 9)) for v in (0.0, 0.0, 3.0)]
    found = mean_over_seeds(shares, "").metrics["loops"]
    assert found.low == 0 < 2 < found.high


def test_the_line_joins_one_mixture_a_weight_from_smile_to_mle(scenes_config):
    objectives = {
        "MLE": "mle",
        "half": "{mle: 2, smile: 2}",
        "random": "random",
        "SMILE": "smile",
        "SMILE, first token shifted": "smile",  # an ablation
        "reversed": "{mle: 1, reverse: 1}",
    }
    runs = [
        make_run(label, load_config(scenes_config, [f"objective={objective}"]))
        for label, objective in objectives.items()
    ]
    runs.insert(0, make_run("of other weights", runs[1].config, "weights"))
    assert [run.label for run in mixtures_by_weight(runs)] == ["SMILE", "half", "MLE"]
