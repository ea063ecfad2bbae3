"""The layer against autograd's own, in value, gradients and what is kept."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from BLIP.gelu_linear import gelu_linear


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(24, 10)


def with_gradients(function, linear, x, dtype):
    linear.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        result = function(x, linear)
    result.float().square().sum().backward()
    return [result, x.grad, linear.weight.grad.clone(), linear.bias.grad.clone()]


def usual(x, linear):
    return linear(F.gelu(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_it_is_equal_to_the_usual_layers(linear, dtype, shape):
    x = torch.randn(*shape, 24)
    if dtype == torch.bfloat16:
        x = x.bfloat16()  # as the layer before hands it over
    for ours, theirs in zip(
        with_gradients(gelu_linear, linear, x, dtype), with_gradients(usual, linear, x, dtype)
    ):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


def test_gradients_in_double_precision(linear):
    linear.double()
    x = torch.randn(4, 24, dtype=torch.float64, requires_grad=True)
    parameters = [*linear.parameters()]
    assert torch.autograd.gradcheck(lambda x, *_: gelu_linear(x, linear), (x, *parameters))


def test_one_side_of_the_gelu_is_kept(linear):
    kept = []

    def pack(tensor):
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    x = torch.randn(3, 24, dtype=torch.bfloat16, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        gelu_linear(x, linear)
    assert kept == [((3, 24), torch.bfloat16), ((10, 24), torch.float32)]


def test_other_layers_and_no_gradients_take_the_usual_way(linear):
    """So that an adapter in the layer's place is not passed over."""

    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    x = torch.randn(3, 24)
    adapted = Adapted(24, 10)
    adapted.load_state_dict(linear.state_dict())
    assert torch.equal(gelu_linear(x, adapted), linear(F.gelu(x)) + 1)
    with torch.no_grad():
        assert torch.equal(gelu_linear(x, linear), linear(F.gelu(x)))
