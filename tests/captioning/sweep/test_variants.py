"""The variants of a sweep: the published ones, each once; means over seeds, computed by hand."""

from pathlib import Path

import pytest

from captioning.config import load_config
from captioning.metrics.intervals import Estimate
from captioning.report.runs import Run
from captioning.sweep.comparison import mean_over_seeds, mixtures_by_weight
from captioning.sweep.variants import ablation_variants, mle_share, own_keys, plan, with_seeds
from smile import OBJECTIVES

KEYS = ("objective", "first_token_mle", "first_token_shift", "random_subset_size")


@pytest.fixture
def settings_of(scenes_config):
    return lambda variant: load_config(scenes_config, variant.overrides)


def test_mixtures_are_run_once_in_the_order_of_their_weights_and_once_a_seed(settings_of):
    variants = plan([1, 0.01, 0, 0.5, 0.01])
    assert [variant.name for variant in variants] == ["smile", "mle0.01", "mle0.5", "mle"]
    objectives = [settings_of(variant).objective for variant in variants]
    mixed = [{"mle": 0.01, "smile": 0.99}, {"mle": 0.5, "smile": 0.5}]
    assert objectives == ["smile", *mixed, "mle"]
    assert [mle_share(settings_of(variant)) for variant in variants] == [0, 0.01, 0.5, 1]
    assert with_seeds(variants, 1) == variants
    seeded = with_seeds(variants[2:], 3)
    assert [v.name for v in seeded][:3] == ["mle0.5_seed0", "mle_seed0", "mle0.5_seed1"]
    assert [settings_of(v).seed for v in seeded] == [0, 0, 1, 1, 2, 2]
    assert {v.label for v in seeded} == {v.label for v in variants[2:]}


def test_the_ablations_are_the_published_ones(settings_of):
    usual, without = (True, False, 10), (False, False, 10)
    expected = {
        "objective": [
            *(("mle", *usual), ("smile", *usual), ("random", *without), ("reverse", *usual)),
            ({"reverse": 0.5, "mle": 0.5}, *usual),
        ],
        "first_token_mle": [("smile", *usual), ("smile", *without)],
        "first_token_shift": [("smile", *usual), ("smile", False, True, 10)],
        "subset_size": [("random", False, False, 3), ("random", *without)],
    }
    for name, objectives in expected.items():
        found = map(settings_of, plan(ablations=[name], sizes=[3, 10]))
        assert objectives == [tuple(getattr(config, key) for key in KEYS) for config in found]


def test_what_two_ablations_share_is_run_once(settings_of):
    variants = plan([0, 0.01, 1], ablations=ablation_variants())
    told = [variant.name for variant in variants]
    assert len(told) == len(set(told)) == 10
    assert len({str(settings_of(variant)) for variant in variants}) == 10
    assert told[:3] == ["smile", "mle0.01", "mle"]  # mixtures first
    assert own_keys(variants) == {*KEYS, "output_dir"}


def test_every_objective_is_compared_once_alone_and_some_mixtures_are(settings_of):
    variants = plan(objectives=OBJECTIVES)
    found = [settings_of(variant).build_objective().weights for variant in variants]
    alone = [{name: 1.0} for name in ("smile", "mle", *OBJECTIVES[2:])]
    assert [weights for weights in found if len(weights) == 1] == alone
    mixed = [{"mle": share, "smile": 1 - share} for share in (0.01, 0.1, 0.5)]
    assert [weights for weights in found if len(weights) > 1] == mixed
    assert len({variant.name for variant in variants}) == len(variants)
    assert [v.name for v in plan(objectives=["focal", "mle", "focal"])] == ["mle", "focal"]


def make_run(label="a run", config=None, kind="smile", **metrics):
    captions, path = {1: "a dog"}, Path("run")
    return Run(path, label, kind, config, config, captions, metrics, {}, [], {}, {}, [], None)


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
    runs = [make_run("of other weights", load_config(scenes_config), "weights")]
    for label, objective in objectives.items():
        runs.append(make_run(label, load_config(scenes_config, [f"objective={objective}"])))
    assert [run.label for run in mixtures_by_weight(runs)] == ["SMILE", "half", "MLE"]
