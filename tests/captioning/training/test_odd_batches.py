"""Batches without labels, captions of one token, equal captions."""

import copy

import pytest
import torch

from captioning.data.image import normalise
from smile import Objective
from tests.captioning.training.conftest import first_gradient, without_dropout
from tests.tiny import log_of

SPECS = ["mle", "smile", "random", "reverse", {"mle": 0.01, "smile": 0.99}]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BATCHES = {
    "one token": [["cat"], ["dog"], ["man"]],
    "identical": [["red dog on the box"]] * 3,
    "no word at all": [[""], [""], [""]],
    "no word and many": [[""], ["a red dog and a blue cat and a small ball"], ["cat"]],
    "unknown words": [["xyzzy plugh"], ["\N{SNOWMAN}"], ["xyzzy"]],
    "one word over and over": [["dog " * 30], ["cat " * 30], ["dog cat " * 15]],
}

SLOW = ("no word and many", "one word over and over")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BATCHES],
)
def test_loss_and_gradient_are_finite(make_captioner, name):
    captioner = make_captioner().train()
    images = torch.randn(3, 3, 48, 48)
    for spec in SPECS:
        for first in (True, False):
            captioner.text_decoder.objective = Objective(spec, 0.1, first, pad_token_id=0)
            for dtype in DTYPES:
                captioner.zero_grad()
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                    output = captioner(images, BATCHES[name])
                output.loss.backward()
                assert output.loss.isfinite() and output.loss >= 0
                gradients = [p.grad for p in captioner.parameters() if p.grad is not None]
                assert len(gradients) > 50 and all(g.isfinite().all() for g in gradients)


@pytest.fixture
def run(run):
    """Return a function that sets up a run of one step, without dropout, with overrides."""

    def make(*overrides):
        tuning = run("max_epoch=1", "log_every=1", "objective=smile", *overrides)
        tuning.before_step = without_dropout
        return tuning

    return make


def without_labels(tuning, batches):
    """Let the captioner ignore every token of those batches, counted from 0."""
    calls = []

    def ignore(step, *_):
        without_dropout(step)
        encode = step.learner._encode

        def ignoring(image, captions, prompts):
            tokens, mask, labels, start = encode(image, captions, prompts)
            calls.append(len(captions))
            labels = labels.fill_(-100) if len(calls) - 1 in batches else labels
            return tokens, mask, labels, start

        step.learner._encode = ignoring

    tuning.before_step = ignore


@pytest.mark.parametrize(("empty", "precision"), [(0, "fp16"), (1, "fp32"), (2, "fp32")])
def test_of_accumulated_batches_one_without_labels_counts_for_nothing(run, empty, precision):
    """The gradient is that of the mean over the tokens of the two other batches."""
    tuning = run("accumulation_steps=3", f"precision={precision}")
    plain = copy.deepcopy(tuning.set_up().captioner).eval()
    without_labels(tuning, {empty})
    found = first_gradient(tuning)
    total = tokens = 0
    for number, batch in enumerate(tuning.batches()):
        if number != empty:
            output = plain(normalise(batch["image"]), batch["captions"])
            total, tokens = total + output.loss * output.tokens, tokens + output.tokens
    (total / tokens).backward()
    expected = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    size = torch.stack([g.norm() for g in expected.values()]).norm()
    difference = torch.stack([(found[n] - expected[n]).norm() for n in expected]).norm()
    assert difference < (1e-5 if precision == "fp32" else 2e-2) * size


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_without_any_label_has_no_gradient(run, precision):
    tuning = run("accumulation_steps=3", f"precision={precision}")
    without_labels(tuning, {0, 1, 2})
    found = first_gradient(tuning)
    assert all((value == 0).all() for value in found.values())
    without_labels(tuning, {0, 1, 2})
    (line,) = log_of(tuning.run().folder, "step")
    assert line["loss"] == line["smile"] == line["grad_norm"] == 0
