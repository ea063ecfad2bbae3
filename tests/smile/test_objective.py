"""The mixture: its weights and parts, its settings, copies, and errors for wrong settings."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from smile import OBJECTIVES, Objective, parse_objective, smile_loss
from tests.programs import raises_line
from tests.smile.hidden_states import EOS, SPECS, example, from_logits


def test_a_mixture_is_the_weighted_sum_and_names_its_parts():
    inputs, labels = example()
    spec = SPECS["all"]
    output = from_logits(Objective(spec, 0.3), inputs, labels)
    assert list(output.parts) == list(spec) and {*spec} == {*OBJECTIVES}
    total = 0
    for name, value in spec.items():
        weight = value["weight"] if name == "selective_eos" else value
        alone = from_logits(Objective(SPECS[name], 0.3), inputs, labels)
        torch.testing.assert_close(output.parts[name], alone.loss.detach())
        total = total + weight * alone.loss
    torch.testing.assert_close(output.loss, total)


@pytest.mark.parametrize("name", ["smile", "random", "reverse"])
def test_first_tokens_by_mle_are_by_default_those_of_the_original(name):
    inputs, labels = example()
    losses = {
        first: from_logits(Objective(name, first_token_mle=first), inputs, labels).loss
        for first in (True, False, None)
    }
    assert losses[True] != losses[False]
    assert losses[None] == losses[name != "random"]
    if name == "smile":
        for first in (True, False):
            assert smile_loss(F.linear(*inputs), labels, first_token_mle=first) == losses[first]


def test_random_subset_draws_anew_and_repeats_with_the_seed():
    inputs, labels = example()
    objective = Objective("random", random_subset_size=2)
    for call in (objective.from_hidden, lambda *x: objective(F.linear(*x[:3]), x[3])):
        torch.manual_seed(1)
        first, second = (call(*inputs, labels).loss for _ in range(2))
        torch.manual_seed(1)
        assert call(*inputs, labels).loss == first != second
    everything = Objective("random", random_subset_size=1000)
    mle = from_logits(Objective("mle"), inputs, labels)
    torch.testing.assert_close(from_logits(everything, inputs, labels).loss, mle.loss)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("smlie", "'smlie' is unknown; choose from mle, smile, random, reverse"),
        ({}, "objective is {}; give a name, or a mapping"),
        (["focal"], "objective is ['focal']; give a name"),
        ({"mle": 0}, "'mle': weight is 0; give a number from"),
        ({"mle": {"weight": "much"}}, "weight is 'much'; give a number from"),
        ({"mle": {"gamma": 1}}, "'mle' has no parameter 'gamma'; it has weight"),
        ({"focal": {"gamma": -1}}, "'focal': gamma is -1; give a number from 0"),
        ({"tailr": {"gamma": 1.5}}, "gamma is 1.5; give a number from 0 to 1"),
        ({"tailr": {"min_weight": float("nan")}}, "min_weight is nan; give a number"),
        ({"mixce": {"eta": True}}, "eta is True; give a number"),
        ({"gem": {"beta": 0}}, "beta is 0; give a number from"),
        ({"unlikelihood": {"alpha": float("inf")}}, "alpha is inf; give a number from 0"),
    ],
)
def test_a_wrong_objective_is_one_line(spec, message):
    for call in (parse_objective, Objective):
        with raises_line(ValueError, message):
            call(spec)


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_a_wrong_smoothing_is_one_line(wrong):
    with raises_line(ValueError, f"label_smoothing is {wrong}; give a number from 0 to 1"):
        Objective("mle", label_smoothing=wrong)


def test_weights_with_and_without_parameters():
    assert parse_objective("mle") == parse_objective({"mle": 1}) == {"mle": 1.0}
    found = parse_objective({"mle": 0.5, "tailr": {"weight": 0.25, "gamma": 0.1}, "focal": {}})
    assert found == {"mle": 0.5, "tailr": 0.25, "focal": 1.0}


def test_a_tokenizer_gives_the_ids_that_are_not_set():
    inputs, labels = example()
    unset = Objective("selective_eos")
    for objective, line in ((unset, "is None"), (unset.with_tokens(0, 23), "is 23")):
        line = f"selective_eos: eos_token_id {line}; give the id of the end token, below 23"
        with raises_line(ValueError, line):
            from_logits(objective, inputs, labels)
    plain = Objective({"selective_eos": 0.5, "reverse": 0.5})
    theirs, kept = plain.with_tokens(1, EOS), Objective(SPECS["selective_eos"]).with_tokens(1, 5)
    assert plain.options["selective_eos"] == {} and theirs.pad_token_id == 1
    own, given = (from_logits(each, inputs, labels).parts for each in (theirs, kept))
    assert own["selective_eos"] == given["selective_eos"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_is_the_same_objective(copied):
    objective = Objective(SPECS["all"], 0.1, False, 4).with_tokens(2, 5)
    given = example()
    first, second = (from_logits(each, *given) for each in (objective, copied(objective)))
    torch.testing.assert_close(second, first, rtol=0, atol=0)
