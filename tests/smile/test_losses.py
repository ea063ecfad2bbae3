"""Losses of logits: reductions, precision, memory, recorded numbers, refusals.

tests/fuzz/test_objective.py compares each with its formula.
"""

import json
import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smile import Objective, smile_loss
from tests.programs import raises_line
from tests.smile.hidden_states import IGNORE, SPECS, WAYS, example, from_hidden, from_logits
from tests.smile.largest_made import LargestMade


def test_a_cross_entropy_that_writes_into_its_input_changes_no_gradient(monkeypatch):
    """Liger with cross_entropy=True does so. One caption's logits are passed without a copy."""
    inputs, labels = example(captions=5)
    objective = Objective(SPECS["all"], 0.1)
    expected = [torch.autograd.grad(way(objective, inputs, labels).loss, inputs) for way in WAYS]

    def write(logits, *args, **kwargs):
        logits.detach().zero_()
        return logits.sum(1) * 0

    monkeypatch.setattr(F, "cross_entropy", write)
    monkeypatch.setattr(F, "nll_loss", write)
    found = [torch.autograd.grad(way(objective, inputs, labels).loss, inputs) for way in WAYS]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_sum_and_mean_are_those_of_the_losses_of_each_token_also_under_autocast(spec):
    inputs, labels = example(dtype=torch.float32)
    logits = F.linear(*inputs)

    def call(**how):
        torch.manual_seed(0)
        return Objective(spec, 0.1)(logits, labels, **how)

    each = call(reduction="none")
    assert each.loss.shape == labels.shape and (each.loss[labels == IGNORE] == 0).all()
    count = (labels != IGNORE).sum()
    assert each.tokens == count
    for reduction, divisor in (("sum", 1), ("mean", count)):
        output = call(reduction=reduction)
        torch.testing.assert_close(output.loss, each.loss.sum() / divisor)
        parts = {name: part.sum() / divisor for name, part in each.parts.items()}
        torch.testing.assert_close(output.parts, parts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(call(), output, rtol=0, atol=0)


def test_smile_does_not_read_logits_that_are_not_scored():
    inputs, labels = example()
    found = []
    for value in (0.0, float("nan")):
        logits = F.linear(*inputs).masked_fill((labels == IGNORE).unsqueeze(2), value).detach()
        loss = smile_loss(logits.requires_grad_(), labels)
        found.append([loss.detach(), *torch.autograd.grad(loss, logits)])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_smile_allocates_nothing_of_the_size_of_the_vocabulary():
    """A forward's largest result is (B, N, N); logits themselves are (B, N, V) with V >> N."""
    logits, labels = torch.randn(4, 7, 5000), torch.randint(0, 5000, (4, 7))
    for first, most in ((False, 4 * 7 * 7), (True, 4 * 5000)):
        with LargestMade() as largest:
            smile_loss(logits, labels, first_token_mle=first)
        assert largest.elements <= most


def test_losses_are_those_of_the_original_code(shared_data):
    golden = shared_data.parent / "golden" / "tiny"
    arrays = {k: torch.from_numpy(v) for k, v in np.load(golden / "arrays.npz").items()}
    expected = json.loads((golden / "expected.json").read_text())["losses"]
    logits, words = arrays["logits"], arrays["random_indices"].long()
    labels = arrays["input_ids"].long().masked_fill(arrays["attention_mask"] == 0, IGNORE)[:, 4:]
    for name, loss in expected.items():
        smoothing, first = 0.1 if "smoothing" in name else 0.0, "first_token" in name
        objective = Objective(name.partition("_")[0], smoothing, first, pad_token_id=0)
        with patch.object(torch, "randint", return_value=words):
            assert math.isclose(objective(logits, labels).loss, loss, abs_tol=1e-5), name
    assert len(expected) == 7


@pytest.mark.parametrize("way", [from_logits, from_hidden])
@pytest.mark.parametrize(
    ("change", "how", "line"),
    [
        *(
            (word, {}, f"the label at caption 1, position 0 is {word}, but the vocabulary has 23")
            for word in (23, 30524, -1)
        ),
        (None, {"reduction": "median"}, "reduction is 'median'; it must be 'mean', 'sum' or"),
        *(
            (None, {"weights": torch.tensor([1.0, 1, 1, 1, wrong])}, "weights must be finite")
            for wrong in (-1, float("nan"), float("inf"))
        ),
        (slice(4), {}, "for labels of (4, 7); give one for each label"),
        (torch.tensor(1), {}, "for labels of (7,); give one for each label"),
    ],
)
def test_wrong_arguments_are_one_line(way, change, how, line):
    inputs, labels = example()
    if isinstance(change, int):
        labels[1, 0] = change
    elif change is not None:
        labels = labels[change]
    with raises_line(ValueError, line):
        way(Objective(SPECS["all"]), inputs, labels, **how)
