"""A linear layer that keeps little for backward, by the products that are quick on its device."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from BLIP import products

LITTLE = 2**19  # numbers, in x and the weight, that take longer to make again than they are worth


def lean_linear(
    x: Tensor, linear: nn.Linear, before: Optional[Callable[[Tensor], Tensor]] = None
) -> Tensor:
    """linear(before(x)), x (..., in) -> (..., out), in the precision of autocast where it is on.

    before: a GELU or a LayerNorm, say. Autograd would keep x for it, its result and, under
    autocast, the weight in 16 bits. Here only x is kept, and backward makes the others anew. In
    float32 on a CPU the products are those of `BLIP/products.py`. All is called as it is where
    there is little or nothing to be gained: of a small layer, without gradients, and for any other
    layer than nn.Linear itself, such as an adapter.
    """
    device = x.device.type
    autocast = torch.is_autocast_enabled(device)
    usual = type(linear) is nn.Linear and linear.bias is not None
    learns = torch.is_grad_enabled() and x.requires_grad and usual and linear.weight.requires_grad
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    gains = autocast or before is not None or products.quick(x.device, dtype)
    gains = learns and gains and not torch.compiler.is_compiling()
    if not gains or x.numel() + linear.weight.numel() < LITTLE:
        return linear(x if before is None else before(x))
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
        return products.linear(made.to(dtype), weight.to(dtype), bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight, *own = ctx.saved_tensors
        dtype = weight.dtype
        again = x.detach().requires_grad_()
        with torch.enable_grad():
            made = again if ctx.before is None else ctx.before(again)
        x, weight = made.detach().to(ctx.dtype), weight.to(ctx.dtype)
        of_made, of_weight, of_bias = products.linear_gradients(gradient, x, weight)
        of_x, *of_own = torch.autograd.grad(made, (again, *own), of_made.to(made.dtype))
        return (of_x, None, None, of_weight.to(dtype), of_bias.to(dtype), *of_own)
