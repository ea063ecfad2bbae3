"""The mixture: its weights and parts, and errors for wrong settings."""

import copy
import pickle

import pytest
import torch

from smile import Objective, mle_loss, parse_objective, smile_loss
from smile.objective import captions_per_image
from smile.subsetting import random_subset_loss, reverse_subset_loss
from tests.programs import raises_line


def example():
    labels = torch.randint(1, 50, (3, 6))
    labels[1, 4:] = -100
    return torch.randn(3, 6, 50, requires_grad=True), labels


def test_a_mixture_is_the_weighted_sum_and_names_its_parts():
    logits, labels = example()
    weights = {"mle": 0.01, "smile": 0.5, "random": 0.3, "reverse": 0.19}
    torch.manual_seed(3)
    output = Objective(weights, label_smoothing=0.3, pad_token_id=0)(logits, labels)
    torch.manual_seed(3)
    words = torch.randint(50, (3, 6, 10))
    expected = {  # with the original's first tokens
        "mle": mle_loss(logits, labels, label_smoothing=0.3),
        "smile": smile_loss(logits, labels, first_token_mle=True),
        "random": random_subset_loss(logits, labels, words, pad_token_id=0),
        "reverse": reverse_subset_loss(logits, labels, first_token_mle=True, pad_token_id=0),
    }
    torch.testing.assert_close(output.parts, {k: loss.detach() for k, loss in expected.items()})
    assert list(output.parts) == list(weights)
    loss = sum(weight * expected[name] for name, weight in weights.items())
    torch.testing.assert_close(output.loss, loss)
    assert output.tokens.item() == 16


@pytest.mark.parametrize("name", ["smile", "random", "reverse"])
def test_first_tokens_by_mle_may_be_set(name):
    (logits, labels), losses = example(), {}
    for first in (True, False, None):
        torch.manual_seed(3)
        losses[first] = Objective(name, first_token_mle=first)(logits, labels).loss
    assert losses[True] != losses[False]
    assert losses[None] == losses[name != "random"]


def test_random_subset_draws_anew_and_repeats_with_the_seed():
    logits, labels = example()
    objective = Objective("random", first_token_mle=False, random_subset_size=2)
    torch.manual_seed(1)
    first, second = objective(logits, labels).loss, objective(logits, labels).loss
    torch.manual_seed(1)
    assert objective(logits, labels).loss == first != second
    everything = Objective("random", first_token_mle=False, random_subset_size=1000)
    torch.testing.assert_close(everything(logits, labels).loss, mle_loss(logits, labels))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("smlie", "'smlie' is unknown; choose from mle, smile, random, reverse"),
        ({}, "objective is {}; give a name, or a mapping"),
        (["focal"], "objective is ['focal']; give a name"),
        ({"mle": -1}, "'mle' has weight -1; give a number above 0"),
        ({"mle": 0}, "give a number above 0"),
        ({"mle": "much"}, "'mle' has weight 'much'"),
        ({"mle": float("nan")}, "has weight nan"),
        ({"mle": True}, "has weight True"),
        ({"focal": {"weight": 0, "gamma": 1}}, "'focal' has weight 0; give a number above 0"),
        ({"focal": {"alpha": 1}}, "'focal' has no parameter 'alpha'; it has weight, gamma"),
        ({"mle": {"gamma": 1}}, "'mle' has no parameter 'gamma'; it has weight"),
    ],
)
def test_a_wrong_objective_is_one_line(spec, message):
    for call in (parse_objective, Objective):
        with raises_line(ValueError, message):
            call(spec)


def test_weights_with_and_without_parameters():
    assert parse_objective("mle") == parse_objective({"mle": 1}) == {"mle": 1.0}
    found = parse_objective({"mle": 0.5, "tailr": {"weight": 0.25, "gamma": 0.1}, "focal": {}})
    assert found == {"mle": 0.5, "tailr": 0.25, "focal": 1.0}


@pytest.mark.parametrize("smoothing", [-0.1, 1.5, float("nan")])
def test_a_wrong_smoothing_is_refused(smoothing):
    with pytest.raises(ValueError, match=f"label_smoothing is {smoothing}; give a number"):
        Objective("mle", label_smoothing=smoothing)


def test_every_image_has_as_many_captions():
    assert captions_per_image([["a", "b"], ["c", "d"], ["e", "f"]], 3) == 2
    for wrong, images in (([], 0), ([["a"], []], 2), ([[], []], 2), ([["a"]], 2)):
        with pytest.raises(ValueError, match=f"captions for {images} images; give each"):
            captions_per_image(wrong, images)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_is_the_same_objective(copied):
    mixture = {"mle": 0.2, "focal": {"weight": 0.3, "gamma": 1.5}, "selective_eos": 0.5}
    objective = Objective(mixture, label_smoothing=0.1).with_tokens(0, 1)
    found = [each(*example()) for each in (objective, copied(objective)) if torch.manual_seed(1)]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
