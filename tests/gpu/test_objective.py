"""Losses and gradients from hidden states, in every precision, against float64 on the CPU."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from benchmarks.objective import OBJECTIVES
from smile import Objective, alternatives
from smile.alternatives import random_words
from tests.gpu.card import DEVICE, REHEARSAL, relative_error

# What a precision's rounding may do to a loss and its gradients, relative to their norms.
ERRORS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
PRECISIONS = [(dtype, False) for dtype in ERRORS]
PRECISIONS += [(torch.bfloat16, True), (torch.float16, True)]  # with autocast
VOCABULARIES = (50, 71) if REHEARSAL else (30_524, 131_072, 262_144)
SCALE = 2.0**12  # of the loss, so that gradients in float16 do not vanish


def random_inputs(vocabulary):
    """Return hidden states, weight, bias and labels, with values that every precision has."""
    rows, length, width = (2, 5, 8) if REHEARSAL else (4, 8, 64)
    random = torch.Generator().manual_seed(vocabulary)
    made = [
        torch.randn(rows, length, width, generator=random),
        torch.randn(vocabulary, width, generator=random) * width**-0.5,
        torch.randn(vocabulary, generator=random),
    ]
    labels = torch.randint(vocabulary, (rows, length), generator=random)
    labels[0, -2:] = -100
    labels[1, 2] = labels[1, 1]
    # float16 has numbers of bfloat16 that are not too small.
    return [x.masked_fill(x.abs() < 1e-3, 0).bfloat16().float() for x in made], labels


def words_of_the_cpu(labels, **options):
    """Sample the words of random subsetting, the same ones on every device."""
    torch.manual_seed(0)
    return [x.to(labels.device) for x in random_words(labels.cpu(), **options)]


def from_hidden(objective, inputs, labels, dtype, autocast):
    """Return loss and gradients from hidden states; inputs are float32 under autocast."""
    of_inputs = torch.float32 if autocast else dtype
    given = [x.to(DEVICE, of_inputs, copy=True).requires_grad_() for x in inputs]
    with torch.autocast(DEVICE.type, dtype, enabled=autocast):
        loss = objective.from_hidden(*given, labels.to(DEVICE)).loss
    (loss.float() * SCALE).backward()
    return [loss, *(x.grad.double() / SCALE for x in given)]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", OBJECTIVES)
@mock.patch.object(alternatives, "random_words", words_of_the_cpu)
def test_losses_and_gradients_are_those_of_float64(name, vocabulary):
    inputs, labels = random_inputs(vocabulary)
    objective = Objective(OBJECTIVES[name], 0.1, pad_token_id=0)
    exact = [x.double().requires_grad_() for x in inputs]
    loss = objective(F.linear(*exact), labels).loss
    expected = [loss, *torch.autograd.grad(loss, exact)]
    for dtype, autocast in PRECISIONS:
        found = from_hidden(objective, inputs, labels, dtype, autocast)
        error = max(relative_error(a, b) for a, b in zip(found, expected))
        print(f"{str(dtype)[6:]}{', autocast' * autocast}: {error:.1e}")
        assert error < ERRORS[dtype]
