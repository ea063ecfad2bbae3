"""What a run minimises, as it is told."""

import pytest

from captioning.config import load_config
from captioning.config.objectives import minimised, objective_name


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
    ],
)
def test_what_is_minimised(tmp_path, overrides, line):
    (tmp_path / "least.yaml").write_text("image_root: a\nann_root: b\n")
    assert minimised(load_config(tmp_path / "least.yaml", overrides)) == line
