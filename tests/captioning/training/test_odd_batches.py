"""Batches without labels, captions of one token, equal captions."""

import copy

import pytest
import torch

from captioning.data.image import normalise
from smile import Objective
from tests.captioning.training.conftest import first_gradient
from tests.tiny import log_of

GIVEN = ["max_epoch=1", "log_every=1", "objective=smile", "accumulation_steps=3"]
SPECS = ["mle", "smile", "random", "reverse", {"mle": 0.01, "smile": 0.99}]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    "captions",
    [
        [["cat"], ["dog"], ["man"]],
        [["red dog on the box"]] * 3,
        [[""], [""], [""]],
        [["xyzzy plugh"], ["\N{SNOWMAN}"], ["xyzzy"]],  # unknown words
    ],
    ids=str,
)
def test_loss_and_gradient_are_finite(make_captioner, captions):
    captioner, images = make_captioner().train(), torch.randn(3, 3, 48, 48)
    for spec in SPECS:
        for first in (True, False):
            captioner.text_decoder.objective = Objective(spec, 0.1, first, pad_token_id=0)
            for dtype in DTYPES:
                captioner.zero_grad()
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                    output = captioner(images, captions)
                output.loss.backward()
                assert output.loss.isfinite() and output.loss >= 0
                gradients = [p.grad for p in captioner.parameters() if p.grad is not None]
                assert len(gradients) > 50 and all(g.isfinite().all() for g in gradients)


def without_labels(tuning, empty):
    """Return the run without dropout, whose captioner ignores every token of those batches."""
    calls = []

    def ignore(step, *_):
        step.learner.eval()  # without dropout
        training_tokens = step.learner.training_tokens

        def ignoring(*given):
            tokens, labels, start = training_tokens(*given)
            calls.append(given)
            return tokens, labels.fill_(-100) if len(calls) - 1 in empty else labels, start

        step.learner.training_tokens = ignoring

    tuning.before_step = ignore
    return tuning


@pytest.mark.parametrize(("empty", "precision"), [(0, "fp16"), (1, "fp32"), (2, "fp32")])
def test_of_accumulated_batches_one_without_labels_counts_for_nothing(run, empty, precision):
    """The gradient is that of the mean over the tokens of the two other batches."""
    tuning = run(f"precision={precision}")
    plain = copy.deepcopy(tuning.set_up().captioner).eval()
    found = first_gradient(without_labels(tuning, {empty}))
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
    tuning = run(f"precision={precision}")
    found = first_gradient(without_labels(tuning, {0, 1, 2}))
    assert all((value == 0).all() for value in found.values())
    (line,) = log_of(without_labels(tuning, {0, 1, 2}).run().folder, "step")
    assert line["loss"] == line["smile"] == line["grad_norm"] == 0
