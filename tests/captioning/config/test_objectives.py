"""What a run minimises, as it is told."""

import pytest

from captioning.config import load_config, write_config
from captioning.config.objectives import (
    describe_training,
    objective_name,
    training_name,
    training_terms,
)


@pytest.mark.parametrize(
    "objective, name",
    [
        ("mle", "MLE"),
        ("smile", "SMILE"),
        ({"smile": 0.7, "mle": 0.3}, "MLE+SMILE 0.3:0.7"),
        ({"mle": 0.01, "smile": 0.99}, "MLE+SMILE 0.01:0.99"),
        ("reverse", "reverse subset"),
    ],
)
def test_objective_name(objective, name):
    assert objective_name(objective) == name


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([], "minimising MLE (label smoothing 0.1), for no objective is set"),
        (["objective=mle", "label_smoothing=0"], "minimising MLE"),
        (
            ["objective={mle: 0.01, smile: 0.99}"],
            "minimising 0.01 MLE (label smoothing 0.1) + 0.99 SMILE (first token over the "
            "vocabulary)",
        ),
        (["objective=smile", "first_token_mle=false"], "minimising SMILE"),
        (
            ["objective={mle: 0.5, focal: {weight: 0.5, gamma: 1}}"],
            "minimising 0.5 MLE (label smoothing 0.1) + 0.5 focal (gamma 1)",
        ),
        (["objective={smile: 2}"], "minimising 2 SMILE (first token over the vocabulary)"),
        (
            ["objective={random: 0.5, reverse: 0.5}", "random_subset_size=7"],
            "minimising 0.5 random subset (7 words) + 0.5 reverse subset (first token over the "
            "vocabulary)",
        ),
        (["reward={cider: 1}"], "maximising 1 CIDEr-D (5 captions an image, baseline others)"),
        (
            ["reward={cider: 1}", "objective={mle: 0.1}", "reward_kl=0.2", "label_smoothing=0"],
            "maximising 1 CIDEr-D (5 captions an image, baseline others, KL 0.2), "
            "minimising 0.1 MLE",
        ),
    ],
)
def test_what_is_minimised(tmp_path, overrides, line):
    (tmp_path / "least.yaml").write_text("image_root: a\nann_root: b\n")
    assert describe_training(load_config(tmp_path / "least.yaml", overrides)) == line


@pytest.mark.parametrize(
    ("overrides", "parts", "name"),
    [
        ([], ["mle"], "MLE"),
        (["reward={cider: 1}"], ["reward"], "reward CIDEr-D"),
        (
            ["reward={clipscore: 2, cider: 1}", "objective={smile: 0.1}"],
            ["reward", "smile"],
            "reward CLIPScore+CIDEr-D 2:1 + 0.1 SMILE",
        ),
        (["reward={cider: 2}", "objective=mle"], ["reward", "mle"], "reward CIDEr-D 2 + MLE"),
    ],
)
def test_what_trains_a_run(tmp_path, overrides, parts, name):
    (tmp_path / "least.yaml").write_text("image_root: a\nann_root: b\n")
    config = load_config(tmp_path / "least.yaml", overrides)
    assert (training_terms(config), training_name(config)) == (parts, name)
    write_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
