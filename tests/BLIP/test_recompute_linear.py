"""The layer's value, gradients and saved tensors beside autograd's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from BLIP.kernels import matmul
from BLIP.kernels import recompute_linear as module
from BLIP.kernels.recompute_linear import recompute_linear


@pytest.fixture(autouse=True, params=[False, True], ids=["", "oneDNN"])
def of_any_size(request, monkeypatch):
    """Use torch's matmul, then oneDNN's, for layers of any size."""
    monkeypatch.setattr(matmul, "USE_ONEDNN_BF16", request.param and matmul.USE_ONEDNN_BF16)
    monkeypatch.setattr(module, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(module, "MIN_PRODUCTS", 0)
    monkeypatch.setattr(matmul, "USE_ONEDNN_FP32", request.param and matmul.HAS_ONEDNN)


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
def test_values_and_gradients_are_those_of_the_usual_layers(linear, dtype, name, shape):
    x = torch.randn(*shape, 24)
    if name == "GELU" and dtype == torch.bfloat16:
        x = x.bfloat16()  # as the layer before hands it over
    before = BEFORE[name]()
    expected = with_gradients(usual, linear, before, x, dtype)
    for ours, theirs in zip(with_gradients(recompute_linear, linear, before, x, dtype), expected):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


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


@pytest.mark.parametrize("learning", ["none", "bias"])
def test_a_frozen_layer_passes_the_gradient_on(linear, learning):
    linear.requires_grad_(False)
    linear.bias.requires_grad_(learning == "bias")
    x = torch.randn(3, 24)
    found = []
    for layer in (recompute_linear, usual):
        inputs = [x.clone().requires_grad_(), *(p for p in linear.parameters() if p.requires_grad)]
        loss = layer(inputs[0], linear, None).square().sum()
        found.append(torch.autograd.grad(loss, inputs))
    torch.testing.assert_close(*found)


def test_a_subclass_computes_its_own_forward(linear):
    """Such as an adapter in the layer's place."""

    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    x = torch.randn(3, 24, requires_grad=True)
    adapted = Adapted(24, 10)
    adapted.load_state_dict(linear.state_dict())
    assert torch.equal(recompute_linear(x, adapted, F.gelu), linear(F.gelu(x)) + 1)
