"""The objective from hidden states: it equals the objective from logits, with less memory."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from smile import Objective, fused
from smile.packing import LONG_ROW
from tests.smile.hidden_states import (
    HOW,
    IGNORE,
    SPECS,
    WAYS,
    LargestMade,
    compare,
    example,
    from_hidden,
    from_logits,
    gradients,
    words_of_labels,
)

each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
MIXED = SPECS["all"]


@each_spec
def test_loss_parts_and_gradients_are_those_of_the_loss_of_logits(spec):
    for first in (True, False):
        objective = Objective(spec, 0.0, first, random_subset_size=4, pad_token_id=1)
        compare(objective, *example())
    for how in HOW.values():
        compare(Objective(spec, 0.1), *example(), **how)
    (hidden, weight, _), labels = example()
    found, _ = compare(Objective(spec), [hidden, weight, None], labels)
    with torch.no_grad():
        again = from_hidden(Objective(spec), [hidden, weight, None], labels)
    assert not again.loss.requires_grad
    torch.testing.assert_close(again, found)


@each_spec
def test_behind_a_long_prompt_the_labels_alone_are_looked_at(spec):
    inputs, few = example()
    long = torch.randn(5, 2 * LONG_ROW, 6, dtype=torch.float64, requires_grad=True)
    long.data[:, -7:] = inputs[0].data
    labels = torch.full(long.shape[:2], IGNORE)
    labels[:, -7:] = few
    objective = Objective(spec, 0.1, pad_token_id=1)  # left out where a row ends in padding
    with words_of_labels():
        output, found = compare(objective, [long, *inputs[1:]], labels)
        short, expected = compare(objective, inputs, few)
    torch.testing.assert_close(output, short)
    torch.testing.assert_close((found[0][:, -7:], *found[1:]), expected)


@each_spec
def test_hidden_states_at_padding_are_not_read(spec):
    inputs, labels = example()
    labels[0, 0] = IGNORE  # the position to which padding of blocks points
    results = []
    for padding in (0.0, float("nan")):
        with torch.no_grad():
            inputs[0][labels == IGNORE] = padding
        for how in HOW.values():
            loss = from_hidden(Objective(spec), inputs, labels, **how).loss
            results.append((loss.detach(), *gradients(loss, inputs)))
    half = len(HOW)
    torch.testing.assert_close(results[half:], results[:half], rtol=0, atol=0)


def test_labels_are_smoothed_over_words_that_the_bias_does_not_rule_out():
    inputs, labels = example()
    inputs[2].data[-3:] = torch.tensor([-torch.inf, torch.finfo(torch.double).min, -65504.0])
    compare(Objective({"mle": 0.5, "smile": 0.3, "gem": 0.2}, 0.3), inputs, labels.clamp(max=19))


@each_spec
def test_small_chunks_change_nothing(spec, monkeypatch):
    monkeypatch.setattr(fused, "CPU", (2, 50))
    compare(Objective(spec, 0.1), *example())
    inputs, labels = example(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compare(Objective(spec, 0.1), inputs, labels, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("frozen", [(0,), (1, 2), (0, 1)])
def test_frozen_inputs_have_no_gradient_and_the_others_keep_theirs(frozen):
    inputs, labels = example()
    for number in frozen:
        inputs[number].requires_grad_(False)
    compare(Objective(MIXED, 0.1), inputs, labels)
    Objective(MIXED).from_hidden(*inputs, labels).loss.backward()
    assert [x.grad is not None for x in inputs] == [n not in frozen for n in range(3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("halves", [0, 1, 3])  # of hidden states, weight and bias
@pytest.mark.parametrize("spec", ["mle", "smile", "subsets", "gem", "all"])
def test_half_precision_errs_no_more_than_half_precision_logits(spec, halves, dtype):
    inputs, labels = example(width=32, dtype=torch.float32)
    inputs = [x.detach().to(dtype) for x in inputs]  # exact in all types
    exact = [x.double().requires_grad_() for x in inputs]
    inputs = [(x if i < halves else x.float()).requires_grad_() for i, x in enumerate(inputs)]
    objective, errors = Objective(SPECS[spec], 0.1), []
    loss = from_logits(objective, exact, labels).loss
    expected = [loss, *torch.autograd.grad(loss, exact)]
    for way in (from_hidden, from_logits):
        with torch.autocast("cpu", dtype=dtype, enabled=halves < 3):
            loss = way(objective, inputs, labels).loss
        found = [loss, *torch.autograd.grad(loss, inputs)]
        assert [x.dtype for x in found] == [torch.float32, *(x.dtype for x in inputs)]
        errors.append([((a - b).norm() / b.norm()).item() for a, b in zip(found, expected)])
    assert errors[0][1] > torch.finfo(dtype).eps / 100  # logits are not float32
    for ours, theirs in zip(*errors):
        assert ours <= 1.5 * theirs + torch.finfo(dtype).eps / 4


def test_small_gradients_survive_float16_by_the_scale_of_the_loss():
    """Probabilities of 1e-8 are 0 in float16; scaled by 2**16 they are not."""
    inputs, labels = example(vocabulary=200, width=16, dtype=torch.float32)
    inputs[1].data *= 0.1
    inputs[2].data[:100], inputs[2].data[100:] = -14, 0
    labels = labels.where(labels == IGNORE, labels % 100 + 100)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = Objective("mle").from_hidden(*inputs, labels).loss
    (loss * 2.0**16).backward()
    rare = inputs[1].grad[:100] / 2**16
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = gradients(Objective("mle")(F.linear(*exact), labels).loss / 3, exact)[1][:100]
    assert 0 < expected.abs().max() < 1e-6
    torch.testing.assert_close(rare.double(), expected, rtol=0.05, atol=1e-9)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_backward_runs_twice_and_outside_autocast(dtype, reduction):
    """A loss twice as large has exactly twice the gradient, in the second backward, too."""
    inputs, labels = example(dtype=torch.float32)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss = Objective(MIXED, 0.1).from_hidden(*inputs, labels, reduction=reduction).loss
    first = torch.autograd.grad(2**12 * loss.sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(2**13 * loss.sum(), inputs)
    torch.testing.assert_close(list(second), [2 * x for x in first], rtol=0, atol=0)


def test_a_second_derivative_is_refused():
    inputs, labels = example()
    loss = Objective("smile").from_hidden(*inputs, labels).loss
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, inputs[0], create_graph=True)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_activation_checkpointing_changes_no_gradient(way, reentrant, reduction):
    (inputs, labels), calls = example(), []

    def loss(hidden):
        calls.append(hidden)
        inside = [hidden.tanh(), *inputs[1:]]
        return way(Objective(MIXED), inside, labels, reduction=reduction).loss.square().sum()

    expected = gradients(loss(inputs[0]) / 3, inputs)
    checkpoint(loss, inputs[0], use_reentrant=reentrant).backward()
    assert len(calls) == 3  # once more, in the backward pass
    torch.testing.assert_close(tuple(x.grad for x in inputs), expected)


@pytest.mark.parametrize(
    ("spec", "first", "largest"),
    [
        ("smile", False, 8 * 20 * 20),
        ("smile", True, 8 * 5000),
        ("random", False, 8 * 20 * 11 * 11),
        ({"mle": 0.5, "smile": 0.5}, True, 16 * 5000),
        ({"reverse": 0.5, "gem": 0.5}, True, 20 * 5000),
    ],
)
def test_nothing_of_the_size_of_all_logits_is_made(spec, first, largest, monkeypatch):
    """Except the gradient of the weight. All logits would be 8 * 20 * 5000."""
    monkeypatch.setattr(fused, "CPU", (16, fused.CPU[1]))
    inputs, labels = example(8, 20, 5000, 4, torch.float32)
    objective = Objective(spec, 0.1, first_token_mle=first)
    with LargestMade(besides=[(5000, 4), (4, 5000), (5000,)]) as made:
        torch.autograd.grad(objective.from_hidden(*inputs, labels).loss, inputs)
    assert made.elements <= largest
    if spec == "smile":
        logits = F.linear(*inputs).detach()
        with LargestMade() as made:
            objective(logits, labels)
        assert made.elements <= largest


@pytest.mark.parametrize(("spec", "how"), [("all", "mean"), ("smile", "mean"), ("subsets", "none")])
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_program_has_the_loss_and_gradients_of_the_eager_one(way, spec, how):
    torch._dynamo.reset()
    objective = Objective(SPECS[spec], 0.1)

    def program(hidden, weight, bias, labels):
        return way(objective, [hidden.tanh(), weight, bias], labels, **HOW[how])

    compiled, found = torch.compile(program, backend="aot_eager"), []
    for length in (7, 9, 7):
        inputs, labels = example(length=length)
        for each in (program, compiled):
            output = each(*inputs, labels)
            found.append([output, gradients(output.loss, inputs)])
    torch.testing.assert_close(found[1::2], found[::2])
