"""The mixture: its weights and parts, errors for wrong settings, and use within other modules."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smile import (
    OBJECTIVES,
    Objective,
    mle_loss,
    parse_objective,
    random_subset_loss,
    reverse_subset_loss,
    smile_loss,
)
from smile.objective import captions_per_image


def example():
    labels = torch.randint(1, 50, (3, 6))
    labels[1, 4:] = -100
    return torch.randn(3, 6, 50, requires_grad=True), labels


def test_a_mixture_is_the_weighted_sum_and_names_its_parts():
    logits, labels = example()
    output = Objective({"mle": 0.01, "smile": 0.99})(logits, labels)
    mle = mle_loss(logits, labels)
    smile = smile_loss(logits, labels, first_token_mle=True)
    torch.testing.assert_close(output.loss, 0.01 * mle + 0.99 * smile)
    assert list(output.parts) == ["mle", "smile"]
    torch.testing.assert_close(output.parts["mle"], mle.detach())
    assert not output.parts["smile"].requires_grad
    assert output.tokens.item() == 16


def test_mle_is_cross_entropy_unless_smoothing_is_asked_for():
    logits, labels = example()
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(Objective("mle")(logits, labels).loss, expected)
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"label_smoothing is {wrong}; give a number"):
            Objective("mle", label_smoothing=wrong)


@pytest.mark.parametrize(
    ("given", "firsts"),
    [
        (None, {"smile": True, "random": False, "reverse": True}),  # as the original has them
        (True, {"smile": True, "random": True, "reverse": True}),
        (False, {"smile": False, "random": False, "reverse": False}),
    ],
)
def test_first_tokens_by_mle_in_each_objective(given, firsts):
    logits, labels = example()
    objective = Objective({"mle": 1, **dict.fromkeys(firsts, 1)}, 0.3, given, pad_token_id=0)
    torch.manual_seed(3)
    parts = objective(logits, labels).parts
    torch.manual_seed(3)
    words = torch.randint(50, (3, 6, 10))
    expected = {
        "mle": mle_loss(logits, labels, label_smoothing=0.3),
        "smile": smile_loss(logits, labels, first_token_mle=firsts["smile"]),
        "random": random_subset_loss(logits, labels, words, -100, firsts["random"], 0),
        "reverse": reverse_subset_loss(logits, labels, -100, firsts["reverse"], 0),
    }
    for name, loss in expected.items():
        torch.testing.assert_close(parts[name], loss.detach(), msg=name)


def test_random_subset_draws_anew_and_repeats_with_the_seed():
    logits, labels = example()
    objective = Objective("random", first_token_mle=False, random_subset_size=2)
    torch.manual_seed(1)
    first, second = objective(logits, labels).loss, objective(logits, labels).loss
    torch.manual_seed(1)
    assert objective(logits, labels).loss == first != second
    everything = Objective("random", first_token_mle=False, random_subset_size=1000)
    torch.testing.assert_close(everything(logits, labels).loss, mle_loss(logits, labels))


@pytest.mark.parametrize("spec", ["mle", {"mle": 1}])
def test_a_name_is_a_weight_of_one(spec):
    assert parse_objective(spec) == {"mle": 1.0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("smlie", "'smlie' is unknown; choose from mle, smile, random, reverse"),
        ({}, "objective is empty"),
        ({"mle": -1}, "'mle' has weight -1; give a number above 0"),
        ({"mle": 0}, "give a number above 0"),
        ({"mle": "much"}, "'mle' has weight 'much'"),
        ({"mle": float("nan")}, "has weight nan"),
        ({"mle": True}, "has weight True"),
    ],
)
def test_a_wrong_objective_is_one_clear_line(spec, message):
    with pytest.raises(ValueError, match=message) as error:
        parse_objective(spec)
    assert "\n" not in str(error.value)


def test_every_image_has_as_many_captions():
    assert captions_per_image([["a", "b"], ["c", "d"], ["e", "f"]], 3) == 2
    for wrong, images in (
        ([], 0),
        ([["a"], []], 2),
        ([[], []], 2),
        ([["a"]], 2),
        ([["a"], "bc"], 2),
    ):
        with pytest.raises(ValueError, match=f"captions for {images} images; give each"):
            captions_per_image(wrong, images)


MIXTURE = {"mle": 0.2, "focal": {"weight": 0.3, "gamma": 1.5}, "truncation": 0.5}


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.objective = nn.Embedding(30, 8), Objective(MIXTURE)

    def forward(self, tokens):
        hidden = self.words(tokens[:, :-1])
        return self.objective.from_hidden(hidden, self.words.weight, None, tokens[:, 1:]).loss


def test_what_torch_asks_of_every_module():
    model, tokens = Speller(), torch.randint(30, (3, 6))
    model(tokens).backward()
    assert [*map(id, model.parameters())] == [id(model.words.weight)]
    assert list(model.objective.parameters()) == []
    model.apply(lambda module: sum(p.numel() for p in module.parameters()))  # as FSDP wraps
    model.zero_grad()
    model.objective.zero_grad()
    assert model.words.weight.grad is None
    model.requires_grad_(False)
    assert not model(tokens).requires_grad
    model.double().eval().to("meta")


@pytest.mark.parametrize("spec", [*OBJECTIVES, MIXTURE], ids=str)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_is_the_same_objective(spec, copied):
    objective = Objective(spec, label_smoothing=0.1).with_tokens(0, 1)
    logits, labels = torch.randn(3, 6, 30), torch.randint(2, 30, (3, 6))
    found = []
    for each in (objective, copied(objective)):
        torch.manual_seed(1)
        found.append(each(logits, labels))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
