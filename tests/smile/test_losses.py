"""Losses of logits: reductions, recorded numbers, refusals; tests/fuzz has their formulas."""

import json
import math
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smile import Objective
from tests.programs import raises_line
from tests.smile.hidden_states import IGNORE, SPECS, WAYS, example


def test_a_cross_entropy_that_another_library_has_replaced_is_not_called(monkeypatch):
    """Liger's, with cross_entropy=True, writes into the logits."""
    for name in ("cross_entropy", "nll_loss"):
        monkeypatch.setattr(F, name, None)
    for way in WAYS:
        way(Objective(SPECS["all"], 0.1), *example()).loss.backward()


def test_sum_and_mean_are_those_of_the_losses_of_each_token_also_under_autocast():
    inputs, labels = example(dtype=torch.float32)
    logits, count = F.linear(*inputs), (labels != IGNORE).sum()

    def call(reduction):
        torch.manual_seed(0)
        output = Objective(SPECS["all"], 0.1)(logits, labels, reduction=reduction)
        assert output.tokens == count
        return [output.loss, *output.parts.values()]

    each, total, mean = map(call, ("none", "sum", "mean"))
    assert each[0].shape == labels.shape and (each[0][labels == IGNORE] == 0).all()
    torch.testing.assert_close(total, [loss.sum() for loss in each])
    torch.testing.assert_close(mean, [loss / count for loss in total])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(call("mean"), mean, rtol=0, atol=0)


def test_smile_does_not_read_logits_that_are_not_scored():
    inputs, labels = example()
    found = []
    for value in (0.0, math.nan):
        logits = F.linear(*inputs).masked_fill((labels == IGNORE).unsqueeze(2), value).detach()
        loss = Objective("smile", first_token_mle=False)(logits.requires_grad_(), labels).loss
        found.append([loss.detach(), *torch.autograd.grad(loss, logits)])
    torch.testing.assert_close(*found, rtol=0, atol=0)


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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("change", "how", "line"),
    [
        (23, {}, "the label at caption 1, position 0 is 23, but the vocabulary has 23"),
        (-1, {}, "the label at caption 1, position 0 is -1, but the vocabulary has 23"),
        (None, {"reduction": "median"}, "reduction is 'median'; it must be 'mean', 'sum' or"),
        *(
            (None, {"weights": torch.tensor([1.0, 1, 1, 1, wrong])}, "weights must be finite")
            for wrong in (-1, math.nan, math.inf)
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


IMPORTS = """
import sys, torch, smile
objective = smile.Objective({"mle": 0.1, "smile": 0.4, "random": 0.5, "focal": 1, "gem": 1})
hidden, labels = torch.randn(1, 2, 3, requires_grad=True), torch.tensor([[1, 2]])
objective.from_hidden(hidden, torch.randn(4, 3), None, labels).loss.backward()
assert "smile.hf" not in sys.modules
import smile.hf
print(*sys.modules.keys() & {"transformers", "torch._dynamo", "torch._inductor"})
"""


def test_neither_transformers_nor_torchs_compiler_is_imported():
    assert subprocess.check_output([sys.executable, "-c", IMPORTS], text=True) == "\n"
