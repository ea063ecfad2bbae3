"""The variants of a sweep: the published ones, each once and valid."""

import pytest

from captioning.config import load_config
from captioning.sweep.variants import ablation_variants, mle_share, own_keys, plan, with_seeds
from smile import OBJECTIVES


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
        assert objectives == [
            (c.objective, c.first_token_mle, c.first_token_shift, c.random_subset_size)
            for c in found
        ]


def test_what_two_ablations_share_is_run_once(settings_of):
    variants = plan([0, 0.01, 1], ablations=ablation_variants())
    told = [variant.name for variant in variants]
    assert len(told) == len(set(told)) == 10
    assert len({str(settings_of(variant)) for variant in variants}) == 10
    assert told[:3] == ["smile", "mle0.01", "mle"]  # mixtures first
    keys = {"objective", "first_token_mle", "first_token_shift", "random_subset_size"}
    assert own_keys(variants) == {*keys, "output_dir"}


def test_every_objective_is_compared_once_alone_and_some_mixtures_are(settings_of):
    variants = plan(objectives=OBJECTIVES)
    found = [settings_of(variant).build_objective().weights for variant in variants]
    assert [w for w in found if len(w) == 1] == [
        {name: 1.0} for name in ("smile", "mle", *OBJECTIVES[2:])
    ]
    mixed = [w for w in found if len(w) > 1]
    assert mixed == [{"mle": m, "smile": 1 - m} for m in (0.01, 0.1, 0.5)]
    assert len({variant.name for variant in variants}) == len(variants)
    assert [v.name for v in plan(objectives=["focal", "mle", "focal"])] == ["mle", "focal"]
