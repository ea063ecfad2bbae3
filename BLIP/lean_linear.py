"""A linear layer that keeps little for backward: what is cheap to make again is made again."""

from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LITTLE = 2**19  # numbers, in x and the weight, that take longer to make again than they are worth


def lean_linear(
    x: Tensor, linear: nn.Linear, before: Optional[Callable[[Tensor], Tensor]] = None
) -> Tensor:
    """linear(before(x)), x (..., in) -> (..., out), in the precision of autocast where it is on.

    before: a GELU or a LayerNorm, say. Autograd would keep x for it, its result and, under
    autocast, the weight in 16 bits. Here only x is kept, and backward makes the others anew. All is
    called as it is where there is little or nothing to be saved: of a small layer, without
    gradients, and for any other layer than nn.Linear itself, such as an adapter.
    """
    device = x.device.type
    autocast = torch.is_autocast_enabled(device)
    usual = type(linear) is nn.Linear and linear.bias is not None
    learns = torch.is_grad_enabled() and x.requires_grad and usual and linear.weight.requires_grad
    saves = learns and (autocast or before is not None) and not torch.compiler.is_compiling()
    if not saves or x.numel() + linear.weight.numel() < LITTLE:
        return linear(x if before is None else before(x))
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    parameters = before.parameters() if isinstance(before, nn.Module) else ()
    with torch.autocast(device, enabled=False):
        return _LeanLinear.apply(x, before, dtype, linear.weight, linear.bias, *parameters)


class _LeanLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, before, dtype: torch.dtype, weight: Tensor, bias: Tensor, *own):
        """own: the parameters of `before`."""
        ctx.save_for_backward(x, weight, *own)
        ctx.before, ctx.dtype = before, dtype
        made = x if before is None else before(x)
        return F.linear(made.to(dtype), weight.to(dtype), bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight, *own = ctx.saved_tensors
        again = x.detach().requires_grad_()
        with torch.enable_grad():
            made = again if ctx.before is None else ctx.before(again)
        rows = gradient.flatten(0, -2)  # (n, out)
        of_weight = rows.t() @ made.detach().to(ctx.dtype).flatten(0, -2)
        of_made = (gradient @ weight.to(ctx.dtype)).to(made.dtype)
        of_x, *of_own = torch.autograd.grad(made, (again, *own), of_made)
        of_bias = rows.sum(0).to(weight.dtype)
        return (of_x, None, None, of_weight.to(weight.dtype), of_bias, *of_own)
