"""Every kernel of attention against its definition in double precision, with gradients."""

import pytest
import torch

from BLIP.kernels import attention as module
from BLIP.kernels import matmul
from BLIP.kernels.attention import FEW_QUERIES, MANY_QUERIES, _keep_mask, attention

B, HEADS, PLACES, D = 3, 2, 70, 16


@pytest.fixture(params=["", "oneDNN", "AMX"])
def quick(request, monkeypatch):
    """Choose oneDNN for float32, or torch's fused kernel for bfloat16, or neither.

    A block is one head with many queries, and all heads of an image with fewer.
    """
    monkeypatch.setattr(module, "MAX_SCORES", 2 * MANY_QUERIES * PLACES - 1)
    monkeypatch.setattr(matmul, "USE_ONEDNN_FP32", request.param == "oneDNN" and matmul.HAS_ONEDNN)
    monkeypatch.setattr(matmul, "HAS_AMX", request.param == "AMX")


def problem(queries):
    generator = torch.Generator().manual_seed(queries)

    def normal(length):
        # The layout of an encoder: a token's heads side by side.
        drawn = torch.randn(B, length, HEADS, D, generator=generator, dtype=torch.float64)
        return drawn.transpose(1, 2)

    return normal(queries), normal(PLACES), normal(PLACES), normal(queries)


def by_definition(query, key, value, mask=None, kept=1.0):
    scores = torch.einsum("bhqd,bhpd->bhqp", query, key) / D**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("bhqp,bhpd->bhqd", scores.softmax(-1) * kept, value)


def with_gradients(function, inputs, weight, dtype):
    inputs = [x.to(dtype).detach().requires_grad_() for x in inputs]
    context = function(*inputs)
    (context.double() * weight.to(dtype)).sum().backward()
    return [context.detach(), *(x.grad for x in inputs)]


@pytest.mark.parametrize("queries", [1, FEW_QUERIES, FEW_QUERIES + 1, PLACES, MANY_QUERIES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_context_and_gradients_are_those_of_the_definition(queries, dtype, quick):
    *inputs, weight = problem(queries)
    expected = with_gradients(by_definition, inputs, weight, torch.float64)
    found = with_gradients(attention, inputs, weight, dtype)
    allowed = {torch.float32: 1e-6, torch.bfloat16: 0.01, torch.float16: 2e-3}[dtype]
    for ours, theirs in zip(found, expected):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).norm() < allowed * theirs.norm()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("queries", [1, PLACES, MANY_QUERIES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_gradients_the_context_is_that_of_the_definition(queries, masked, dtype, quick):
    *inputs, _ = problem(queries)
    mask = None
    if masked:
        mask = torch.rand(B, 1, queries, PLACES, generator=torch.Generator().manual_seed(1)) < 0.5
        mask[..., 0] = True
    expected = by_definition(*inputs, mask)
    with torch.no_grad():
        found = attention(*(x.to(dtype) for x in inputs), mask)
    allowed = 1e-6 if dtype == torch.float32 else 0.01
    assert (found.double() - expected).norm() < allowed * expected.norm()


@pytest.mark.parametrize("queries", [5, PLACES, MANY_QUERIES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_that_of_the_probabilities(queries, dtype, quick):
    """One-hot values show which probabilities were dropped; a second call drops the same."""
    query, key, value, weight = problem(queries)
    probability = 0.4
    places = torch.eye(PLACES, dtype=torch.float64).expand(B, HEADS, -1, -1)

    def dropped(query, key, value):
        torch.manual_seed(0)
        return attention(query, key, value, dropout=probability)

    kept = dropped(query, key, places) != 0  # (B, heads, queries, places)
    assert 0.55 < kept.double().mean() < 0.65

    def expected(*inputs):
        return by_definition(*inputs, kept=kept / (1 - probability))

    inputs, allowed = (query, key, value), 1e-6 if dtype == torch.float32 else 0.02
    calls = (dropped, dtype), (expected, torch.float64)
    results = [with_gradients(function, inputs, weight, kind) for function, kind in calls]
    for ours, theirs in zip(*results):
        assert (ours.double() - theirs).norm() < allowed * theirs.norm()


@pytest.mark.parametrize("probability", [0.0001, 0.1, 0.5])
def test_each_place_is_dropped_with_the_same_probability(probability):
    torch.manual_seed(0)
    kept = _keep_mask((1000, 1003), probability)
    dropped = (~kept).flatten()[: 4 * (kept.numel() // 4)].view(-1, 4)
    expected = probability * len(dropped)
    assert (dropped.sum(0) - expected).abs().max() < 5 * expected**0.5
    both = probability * expected  # of two neighbours
    assert ((dropped[:, 1:] & dropped[:, :-1]).sum(0) - both).abs().max() < 5 * both**0.5 + 1


def test_no_probabilities_are_kept_for_backward():
    *inputs, _ = problem(PLACES)
    kept = []

    def pack(tensor):
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attention(*(x.bfloat16().requires_grad_() for x in inputs))
    assert kept and all(shape == (B, HEADS, PLACES, D) for shape in kept)
