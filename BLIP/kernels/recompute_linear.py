"""A linear layer that keeps little for backward, by the products that are quick on its device."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from BLIP.kernels import matmul

LITTLE = 2**19  # numbers, in x and the weight, that take longer to make again than they are worth
FEW = 2**21  # multiplications: of fewer oneDNN gains less than it takes to ask it


def recompute_linear(
    x: Tensor, linear: nn.Linear, before: Optional[Callable[[Tensor], Tensor]] = None
) -> Tensor:
    """linear(before(x)), x (..., in) -> (..., out), in the precision of autocast where it is on.

    before: a GELU or a LayerNorm, say. Autograd would keep x for it, its result and, under
    autocast, the weight in 16 bits. Here only x is kept, and backward recomputes the others, except
    a small layer's. In float32 on a CPU it multiplies by `BLIP/kernels/matmul.py`. A layer that is
    not exactly nn.Linear, such as an adapter, is called as it is.
    """
    device = x.device.type
    usual = type(linear) is nn.Linear and linear.bias is not None
    if not usual or torch.compiler.is_compiling():
        return linear(x if before is None else before(x))
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    quick = matmul.quick(x.device, dtype) and x.numel() * linear.out_features >= FEW
    learns = torch.is_grad_enabled() and x.requires_grad and linear.weight.requires_grad
    much = x.numel() + linear.weight.numel() >= LITTLE
    if learns and much and (autocast or before is not None or quick):
        parameters = before.parameters() if isinstance(before, nn.Module) else ()
        with torch.autocast(device, enabled=False):
            return _LeanLinear.apply(x, before, dtype, linear.weight, linear.bias, *parameters)
    made = x if before is None else before(x)
    if quick and not autocast:
        return _QuickLinear.apply(made, linear.weight, linear.bias)
    return linear(made)


class _QuickLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matmul.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Optional[Tensor], ...]:
        x, weight = ctx.saved_tensors
        if any(ctx.needs_input_grad[1:]):
            return matmul.linear_gradients(gradient, x, weight)
        return matmul.gradient_of_input(gradient, weight), None, None


class _LeanLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, before, dtype: torch.dtype, weight: Tensor, bias: Tensor, *own):
        """own: the parameters of `before`."""
        ctx.save_for_backward(x, weight, *own)
        ctx.before, ctx.dtype = before, dtype
        made = x if before is None else before(x)
        return matmul.linear(made.to(dtype), weight.to(dtype), bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight, *own = ctx.saved_tensors
        dtype = weight.dtype
        again = x.detach().requires_grad_()
        with torch.enable_grad():
            made = again if ctx.before is None else ctx.before(again)
        x, weight = made.detach().to(ctx.dtype), weight.to(ctx.dtype)
        of_made, of_weight, of_bias = matmul.linear_gradients(gradient, x, weight)
        of_x, *of_own = torch.autograd.grad(made, (again, *own), of_made.to(made.dtype))
        return (of_x, None, None, of_weight.to(dtype), of_bias.to(dtype), *of_own)
