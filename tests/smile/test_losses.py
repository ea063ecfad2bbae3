"""What all losses of logits share.

tests/fuzz/test_objective.py holds each to its formula, in each dtype and with any ignore_index.
"""

import itertools
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smile import OBJECTIVES, Objective, SmileLoss, mle_loss, smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_loss
from tests.smile.largest_made import LargestMade

IGNORE = -100


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [False, True])
def test_labels_are_smoothed_over_words_that_the_model_does_not_rule_out(dtype, wide):
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 9).to(dtype), torch.randint(9, (2, 3))
    labels[1, 2] = IGNORE
    reference = torch.zeros(2, 3, dtype=torch.float64)
    for b, n in itertools.product(range(2), range(3)):
        out = [word for word in torch.randperm(9).tolist() if word != labels[b, n]][: 1 + n]
        logits[b, n, out] = [float("-inf"), torch.finfo(dtype).min][b]
        kept = [word for word in range(9) if word not in out]
        if labels[b, n] != IGNORE:
            label = torch.tensor(kept.index(labels[b, n]))
            row = logits[b, n, kept].double()
            reference[b, n] = F.cross_entropy(row, label, label_smoothing=0.3)
    logits = logits.double() if wide else logits  # some models make half precision float32
    logits.requires_grad_()
    loss = mle_loss(logits, labels, label_smoothing=0.3, reduction="none")
    torch.testing.assert_close(loss.double(), reference, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()
    assert (gradient[logits < -1e4] == 0).all()


@pytest.mark.parametrize("spec", [{"mle": 0.3, "smile": 0.7}, "selective_eos", "truncation"])
def test_a_cross_entropy_that_writes_into_its_input_changes_no_gradient(monkeypatch, spec):
    """Liger with cross_entropy=True does so. One caption's logits are passed without a copy."""
    logits = torch.randn(1, 4, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, 5, 1, 0]])
    mixture = Objective(spec, 0.1).with_tokens(2, 0)
    (expected,) = torch.autograd.grad(mixture(logits, labels).loss, logits)

    def write(found, *args, **kwargs):
        found.detach().zero_()
        return found.sum(1) * 0

    monkeypatch.setattr(F, "cross_entropy", write)
    monkeypatch.setattr(F, "nll_loss", write)
    head = torch.eye(6, dtype=torch.float64)
    for output in (mixture(logits * 1, labels), mixture.from_hidden(logits, head, None, labels)):
        torch.testing.assert_close(torch.autograd.grad(output.loss, logits)[0], expected)


LOSSES = {
    "mle": lambda logits, labels, **kw: mle_loss(logits, labels, label_smoothing=0.1, **kw),
    "smile": smile_loss,
    "smile_first_token_mle": lambda *a, **kw: smile_loss(*a, first_token_mle=True, **kw),
    "reverse": reverse_subset_loss,
    "random": lambda logits, labels, **kw: random_subset_loss(
        logits, labels, torch.arange(4).expand(*labels.shape, 4), **kw
    ),
}


each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def example():
    labels = torch.randint(0, 30, (4, 7))
    labels[0, 5:] = labels[1, :3] = labels[2, :] = IGNORE
    return torch.randn(4, 7, 30, requires_grad=True), labels


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("loss", [smile_loss, reverse_subset_loss])
def test_a_tokens_loss_is_cross_entropy_over_its_subset(loss, first):
    """SMILE's are the caption's own tokens, reverse's the label and all tokens but these."""
    logits, labels = (x.double() if x.is_floating_point() else x for x in example())
    labels[0, 2] = labels[0, 0]  # a token that repeats
    expected = torch.zeros(labels.shape, dtype=torch.float64)
    for b, caption in enumerate(labels.tolist()):
        own = {word for word in caption if word != IGNORE}
        scored = [n for n, word in enumerate(caption) if word != IGNORE]
        for n in scored:
            subset = own if loss is smile_loss else {*range(30)} - own | {caption[n]}
            if first and n == scored[0]:
                subset = range(30)
            subset = sorted(subset)
            label = torch.tensor(subset.index(caption[n]))
            expected[b, n] = F.cross_entropy(logits[b, n, subset], label)
    found = loss(logits, labels, first_token_mle=first, reduction="none")
    torch.testing.assert_close(found, expected)
    factors = torch.rand_like(expected)
    theirs, ours = (
        torch.autograd.grad((x * factors).sum(), logits, retain_graph=True)
        for x in (expected, found)
    )
    torch.testing.assert_close(ours, theirs)


@each_loss
def test_sum_and_mean_are_those_of_the_losses_of_each_token(loss):
    logits, labels = example()
    per_token = loss(logits, labels, reduction="none")
    assert per_token.shape == labels.shape
    assert (per_token[labels == IGNORE] == 0).all()
    torch.testing.assert_close(loss(logits, labels, reduction="sum"), per_token.sum())
    count = (labels != IGNORE).sum()
    torch.testing.assert_close(loss(logits, labels, reduction="mean"), per_token.sum() / count)
    with pytest.raises(ValueError, match="reduction"):
        loss(logits, labels, reduction="median")


@each_loss
def test_autocast_does_not_round_the_loss(loss):
    inputs = example()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(*inputs)
    torch.testing.assert_close(inside, loss(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x == "smile" else pytest.mark.slow) for x in LOSSES]
)
def test_a_compiled_loss_has_the_value_and_gradient_of_the_eager_one(name):
    torch._dynamo.reset()
    loss, (logits, labels) = LOSSES[name], example()
    values = [each(logits, labels) for each in (loss, torch.compile(loss, backend="aot_eager"))]
    expected, found = ((x.detach(), *torch.autograd.grad(x, logits)) for x in values)
    torch.testing.assert_close(found, expected)


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
    first, pad = {"first_token_mle": True}, {"pad_token_id": 0}
    values = {
        "mle_label_smoothing_0.1": mle_loss(logits, labels, label_smoothing=0.1),
        "mle": mle_loss(logits, labels),
        "smile_first_token_mle": smile_loss(logits, labels, **first),
        "smile": smile_loss(logits, labels),
        "reverse_first_token_mle": reverse_subset_loss(logits, labels, **first, **pad),
        "reverse": reverse_subset_loss(logits, labels, **pad),
        "random": random_subset_loss(logits, labels, words, **pad),
    }
    assert values.keys() == expected.keys()
    for name, value in values.items():
        assert math.isclose(value.item(), expected[name], abs_tol=1e-5), name


ZEROS = torch.zeros(2, 3, 8)
EVERY_LOSS = {
    **LOSSES,
    "module": SmileLoss(),
    **{f"Objective {name}": lambda *x, name=name: Objective(name)(*x).loss for name in OBJECTIVES},
    "from hidden": lambda logits, labels: (
        Objective("smile").from_hidden(logits, torch.zeros(8, 8), None, labels).loss
    ),
}


@pytest.mark.parametrize("wrong", [8, 30524, -1])
@pytest.mark.parametrize("name", EVERY_LOSS)
def test_an_id_beyond_the_head_is_one_line(name, wrong):
    labels = torch.tensor([[1, 2, -100], [3, wrong, 7]])
    with pytest.raises(ValueError, match="label") as error:
        EVERY_LOSS[name](ZEROS, labels)
    assert str(error.value) == (
        f"the label at caption 1, position 1 is {wrong}, but the vocabulary has 8 tokens (from 0) "
        "and ignore_index is -100"
    )
