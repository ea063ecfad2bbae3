"""GELU and the linear layer after it, with one activation kept for backward instead of two."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def gelu_linear(x: Tensor, linear: nn.Linear) -> Tensor:
    """linear(gelu(x)), x (..., in) -> (..., out), in the precision of autocast where it is on.

    In an image encoder both sides of the GELU are half of what autograd keeps. Here only x is
    kept, and GELU computed again in backward, which costs next to nothing beside the products. So
    is the weight's copy in 16 bits. Any other layer than nn.Linear itself, such as an adapter, is
    called as it is.
    """
    plain = type(linear) is not nn.Linear or torch.compiler.is_compiling()
    if plain or not torch.is_grad_enabled():
        return linear(F.gelu(x))
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    with torch.autocast(device, enabled=False):
        return _GeluLinear.apply(x, linear.weight, linear.bias)


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(F.gelu(x), weight.to(x.dtype), bias.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # (n, out)
        of_weight = rows.t() @ F.gelu(x).flatten(0, -2)
        of_x = torch.ops.aten.gelu_backward(gradient @ weight.to(x.dtype), x)
        return of_x, of_weight.to(weight.dtype), rows.sum(0).to(weight.dtype)
