"""The objective from hidden states against the definition on logits, in processes too."""

import pytest
import torch
import torch.nn.functional as F

from smile import Objective, head
from smile.captions import LONG_ROW, caption_blocks
from tests.processes import Processes
from tests.smile import head_in_processes, hidden_states
from tests.smile.hidden_states import CAPPED, HOW, IGNORE, SPECS, compare, example, fused
from tests.smile.largest_made import LargestMade


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_loss_parts_and_gradients_are_those_of_the_loss_of_logits(spec):
    for first in (True, False):
        for smoothing in (0.0, 0.1):
            objective = Objective(spec, smoothing, first, random_subset_size=4, pad_token_id=1)
            compare(objective, *example())
    for how in HOW.values():
        compare(Objective(spec, 0.1), *example(), **how)


@pytest.mark.parametrize("spec", [*SPECS, "unlikelihood", "gem"], ids=str)
def test_behind_a_long_question_the_labels_alone_are_looked_at(spec):
    inputs, few = example()
    long = torch.randn(5, 2 * LONG_ROW, 6, dtype=torch.float64)
    long[:, LONG_ROW : LONG_ROW + 7] = inputs[0].detach()
    labels = torch.full(long.shape[:2], IGNORE)
    labels[:, LONG_ROW : LONG_ROW + 7] = few
    ((_, own),) = caption_blocks(labels, None, IGNORE)
    assert own.shape == (5, 7)
    inputs[0] = long.requires_grad_()
    compare(Objective(spec, 0.1, random_subset_size=4, pad_token_id=1), inputs, labels)
    ((_, none),) = caption_blocks(torch.full_like(labels, IGNORE), None, IGNORE)
    assert none.eq(IGNORE).all()
    compare(Objective(spec, 0.1), inputs, torch.full_like(labels, IGNORE))


@pytest.mark.parametrize("spec", [*SPECS, "unlikelihood", "gem"], ids=str)
def test_hidden_states_at_padding_are_not_read(spec):
    inputs, labels = example()
    objective = Objective(spec, random_subset_size=4, pad_token_id=1)
    results = []
    for padding in (0.0, float("nan")):
        with torch.no_grad():
            inputs[0][labels == IGNORE] = padding
        torch.manual_seed(0)  # of random subsetting
        loss = objective.from_hidden(*inputs, labels).loss
        results.append((loss.detach(), *torch.autograd.grad(loss, inputs)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["mle", {"mle": 0.5, "smile": 0.3, "gem": 0.2}], ids=str)
def test_labels_are_smoothed_over_words_that_the_bias_does_not_rule_out(spec):
    (hidden, weight, bias), labels = example(vocabulary=26)
    with torch.no_grad():
        bias[23:] = torch.tensor([float("-inf"), torch.finfo(bias.dtype).min, -65504.0])
    fewer = [hidden, *(x.detach()[:23].requires_grad_() for x in (weight, bias))]
    labels = labels.where(labels < 23, 22)
    objective = Objective(spec, 0.3)
    _, found = compare(objective, [hidden, weight, bias], labels)
    output, expected = compare(objective, fewer, labels)
    assert output.loss.isfinite()
    expected = [F.pad(x, (0, 0, 0, 3) if x.dim() == 2 else (0, 3)) for x in expected[1:]]
    torch.testing.assert_close(list(found[1:]), expected)
    with torch.no_grad():  # a soft cap leaves no word ruled out
        bias[23] = torch.finfo(torch.float64).min
    compare(objective, [hidden, weight, bias.nan_to_num(neginf=-1)], labels, **CAPPED)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_small_chunks_give_the_same_loss_and_gradients(spec, monkeypatch):
    monkeypatch.setitem(head.CHUNK_POSITIONS, "cpu", 2)
    monkeypatch.setitem(head.CHUNK_ELEMENTS, "cpu", 50)
    compare(Objective(spec, 0.1), *example())
    inputs, labels = example(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compare(Objective(spec, 0.1), inputs, labels, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("frozen", [0, 1, 2])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_frozen_input_has_no_gradient_and_the_others_keep_theirs(spec, frozen):
    inputs, labels = example()
    inputs[frozen] = inputs[frozen].detach()
    compare(Objective(spec, 0.1), inputs, labels)
    with torch.no_grad():
        assert not Objective(spec, 0.1).from_hidden(*inputs, labels).loss.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden_dtype", ["autocast", torch.float32])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_half_precision_is_that_of_the_definition(spec, dtype, hidden_dtype):
    """The error against float64 is that of half-precision logits with a float32 softmax."""
    inputs, labels = example(width=32, dtype=torch.float32)
    if hidden_dtype == "autocast":
        inputs[0] = inputs[0].detach().to(dtype).requires_grad_()
    objective = Objective(spec, 0.1)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    loss = hidden_states.by_definition(objective, exact, labels).loss
    expected = [loss, *torch.autograd.grad(loss, exact)]
    errors = []
    with torch.autocast("cpu", dtype=dtype):
        for way in (fused, hidden_states.by_definition):
            loss = way(objective, inputs, labels).loss
            assert loss.dtype == torch.float32
            found = [loss, *torch.autograd.grad(loss, inputs)]
            errors.append([(a - b).norm().item() for a, b in zip(found, expected)])
    for ours, theirs in zip(*errors):
        assert ours <= 1.5 * theirs + torch.finfo(dtype).eps / 4


def test_small_gradients_survive_float16_by_the_scale_of_the_loss():
    """Probabilities of 1e-8 are 0 in float16; scaled by 2**16 they are not."""
    inputs, labels = example(vocabulary=200, width=16, dtype=torch.float32)
    inputs[1].data *= 0.1
    inputs[2].data[:100], inputs[2].data[100:] = -14, 0
    with torch.autocast("cpu", dtype=torch.float16):
        loss = Objective("mle").from_hidden(*inputs, labels % 100 + 100).loss
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(loss).backward()
    rare = inputs[1].grad[:100] / 2**16
    with torch.autocast("cpu", enabled=False):
        exact = [x.detach().double().requires_grad_() for x in inputs]
        loss = Objective("mle")(F.linear(*exact), labels % 100 + 100).loss
    expected = torch.autograd.grad(loss, exact[1])[0][:100]
    assert 0 < expected.abs().max() < 1e-6
    torch.testing.assert_close(rare.double(), expected, rtol=0.05, atol=1e-9)


def test_backward_runs_outside_autocast_and_repeats_exactly():
    inputs, labels = example(dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            loss = Objective(SPECS[-1], 0.1).from_hidden(*inputs, labels).loss
        first = torch.autograd.grad(loss, inputs, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(loss, inputs), first, rtol=0, atol=0)


def test_a_gradient_of_the_gradient_is_refused():
    inputs, labels = example()
    loss = Objective("smile").from_hidden(*inputs, labels).loss
    with pytest.raises(
        RuntimeError, match="has no second derivative; compute the objective from logits"
    ):
        torch.autograd.grad(loss, inputs[0], create_graph=True)


def test_the_same_gradients_on_every_run():
    """Gradients of rows that captions share are summed in a fixed order, as resumption needs."""
    torch.manual_seed(0)
    inputs, labels = example(64, 20, 50, 64, torch.float32)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        for spec in SPECS:
            gradients = []
            for _ in range(3):
                loss = fused(Objective(spec, 0.1), inputs, labels).loss
                gradients.append(torch.autograd.grad(loss, inputs))
            for again in gradients[1:]:
                torch.testing.assert_close(again, gradients[0], rtol=0, atol=0)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("spec", "first", "largest"),
    [
        ("smile", False, 8 * 20 * 20),
        ("smile", True, 8 * 5000),
        ("random", False, 8 * 20 * 11 * 11),
        ({"mle": 0.5, "smile": 0.5}, True, 16 * 5000),
        ("reverse", True, 16 * 5000),
    ],
)
def test_nothing_of_the_size_of_all_logits_is_made(spec, first, largest, monkeypatch):
    """Except the gradient of the weight. All logits would be 8 * 20 * 5000."""
    monkeypatch.setitem(head.CHUNK_POSITIONS, "cpu", 16)
    inputs, labels = example(8, 20, 5000, 4, torch.float32)
    with LargestMade(besides=[(5000, 4), (4, 5000)]) as made:
        loss = Objective(spec, 0.1, first_token_mle=first).from_hidden(*inputs, labels).loss
        torch.autograd.grad(loss, inputs)
    assert made.elements <= max(largest, 5000)


@pytest.mark.slow
def test_a_head_sharded_over_two_processes_gives_what_one_gives(tmp_path):
    run = Processes(head_in_processes.main, [*head_in_processes.CASES], tmp_path / "output", 2)
    assert run.wait(200) == [0, 0], run.said()
