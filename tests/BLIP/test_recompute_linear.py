"""The layer against autograd's own, in value, gradients and what is kept."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from BLIP.kernels import matmul
from BLIP.kernels import recompute_linear as module
from BLIP.kernels.recompute_linear import recompute_linear


@pytest.fixture(autouse=True, params=[False, True], ids=["", "oneDNN"])
def of_any_size(request, monkeypatch):
    """With torch's own products and with oneDNN's, which processors with AVX-512 have."""
    monkeypatch.setattr(matmul, "BF16", request.param and matmul.BF16)
    monkeypatch.setattr(module, "LITTLE", 0)
    monkeypatch.setattr(module, "FEW", 0)
    monkeypatch.setattr(matmul, "QUICK", request.param and matmul.LENDS)


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(24, 10)


def norm():
    layer = nn.LayerNorm(24)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


BEFORE = {"nothing": lambda: None, "GELU": lambda: F.gelu, "LayerNorm": norm}


def with_gradients(function, linear, before, x, dtype):
    parameters = [*linear.parameters()]
    parameters += before.parameters() if isinstance(before, nn.Module) else []
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        result = function(x, linear, before)
    return [result, *torch.autograd.grad(result.float().square().sum(), (x, *parameters))]


def usual(x, linear, before):
    return linear(x if before is None else before(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_it_is_equal_to_the_usual_layers(linear, dtype, name, shape):
    x = torch.randn(*shape, 24)
    if name == "GELU" and dtype == torch.bfloat16:
        x = x.bfloat16()  # as the layer before hands it over
    before = BEFORE[name]()
    expected = with_gradients(usual, linear, before, x, dtype)
    for ours, theirs in zip(with_gradients(recompute_linear, linear, before, x, dtype), expected):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", BEFORE)
def test_gradients_in_double_precision(linear, name):
    linear.double()
    before = BEFORE[name]()
    inputs = [torch.randn(4, 24, dtype=torch.float64, requires_grad=True), *linear.parameters()]
    if isinstance(before, nn.Module):
        inputs += before.double().parameters()
    assert torch.autograd.gradcheck(lambda x, *_: recompute_linear(x, linear, before), inputs)


@pytest.mark.parametrize("name", BEFORE)
def test_only_the_input_is_kept_beside_the_parameters(linear, name):
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    before = BEFORE[name]()
    x = torch.randn(3, 24, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        recompute_linear(x, linear, before)
    own = [*before.parameters()] if isinstance(before, nn.Module) else []
    assert [t.data_ptr() for t in kept] == [t.data_ptr() for t in (x, linear.weight, *own)]


def test_what_is_small_is_not_made_again(linear, monkeypatch):
    x = torch.randn(3, 24, requires_grad=True)
    for little, lean in ((72 + 240, True), (72 + 240 + 1, False)):
        monkeypatch.setattr(module, "LITTLE", little)
        assert ("LeanLinear" in str(recompute_linear(x, linear, F.gelu).grad_fn)) is lean


def test_a_small_layer_keeps_what_it_has_made(linear, monkeypatch):
    """And is oneDNN's nevertheless; of a smaller product nothing is asked of it."""
    monkeypatch.setattr(module, "LITTLE", 10**9)
    x = torch.randn(3, 24)
    for few, quick in ((3 * 24 * 10, matmul.QUICK), (3 * 24 * 10 + 1, False)):
        monkeypatch.setattr(module, "FEW", few)
        made = recompute_linear(x.clone().requires_grad_(), linear, F.gelu)
        assert ("QuickLinear" in str(made.grad_fn)) is quick
        ours = with_gradients(recompute_linear, linear, F.gelu, x, torch.float32)
        torch.testing.assert_close(ours, with_gradients(usual, linear, F.gelu, x, torch.float32))


def test_without_gradients_the_product_is_as_quick(linear, monkeypatch):
    asked = []
    monkeypatch.setattr(matmul, "linear", lambda x, *layer: asked.append(x) or F.linear(x, *layer))
    x = torch.randn(3, 24)
    with torch.no_grad():
        assert torch.equal(recompute_linear(x, linear, F.gelu), linear(F.gelu(x)))
    assert len(asked) == matmul.QUICK


@pytest.mark.parametrize("learning", ["none", "bias"])
def test_a_layer_that_is_frozen_hands_the_gradient_on(linear, learning):
    linear.requires_grad_(False)
    linear.bias.requires_grad_(learning == "bias")
    x = torch.randn(3, 24)
    found = []
    for layer in (recompute_linear, usual):
        inputs = [x.clone().requires_grad_(), *(p for p in linear.parameters() if p.requires_grad)]
        loss = layer(inputs[0], linear, None).square().sum()
        found.append(torch.autograd.grad(loss, inputs))
    torch.testing.assert_close(*found)


def test_other_layers_and_no_gradients_take_the_usual_way(linear):
    """So that an adapter in the layer's place is not passed over."""

    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    x = torch.randn(3, 24, requires_grad=True)
    adapted = Adapted(24, 10)
    adapted.load_state_dict(linear.state_dict())
    assert torch.equal(recompute_linear(x, adapted, F.gelu), linear(F.gelu(x)) + 1)
    with torch.no_grad():
        usual = matmul.linear(F.gelu(x), linear.weight, linear.bias)
        assert torch.equal(recompute_linear(x, linear, F.gelu), usual)
        assert matmul.QUICK or torch.equal(usual, linear(F.gelu(x)))
    linear.weight.requires_grad_(False)
    assert "LeanLinear" not in str(recompute_linear(x, linear).grad_fn)
