"""A linear layer that keeps less memory for backward and uses the fastest matmul of its device."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from BLIP.kernels import matmul

MIN_NUMBERS = 2**19  # in x and the weight; for fewer, recomputing takes longer than it is worth
MIN_PRODUCTS = 2**21  # multiplications; for fewer, calling oneDNN takes longer than it gains


def recompute_linear(
    x: Tensor, linear: nn.Linear, before: Optional[Callable[[Tensor], Tensor]] = None
) -> Tensor:
    """linear(before(x)), x (..., in) -> (..., out), in autocast's precision where it is on.

    before: such as a GELU or a LayerNorm. Autograd would keep its input and output and, under
    autocast, the weight in 16 bits. Here only x is kept and backward recomputes the rest, except in
    small layers. In float32 on a CPU `BLIP.kernels.matmul` computes the products. Subclasses of
    nn.Linear, such as adapters, are called as they are.
    """
    device = x.device.type
    if type(linear) is not nn.Linear or linear.bias is None or torch.compiler.is_compiling():
        return linear(x if before is None else before(x))
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    learns = torch.is_grad_enabled() and x.requires_grad and linear.weight.requires_grad
    large = x.numel() + linear.weight.numel() >= MIN_NUMBERS
    recompute = learns and large and (autocast or before is not None)
    if not recompute:
        x, before = (x if before is None else before(x)), None
        onednn = matmul.uses_onednn(x.device, dtype) and not autocast
        if not onednn or x.numel() * linear.out_features < MIN_PRODUCTS:
            return linear(x)
    parameters = before.parameters() if isinstance(before, nn.Module) else ()
    with torch.autocast(device, enabled=False):
        return _RecomputeLinear.apply(x, before, dtype, linear.weight, linear.bias, *parameters)


class _RecomputeLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, before, dtype: torch.dtype, weight: Tensor, bias: Tensor, *own):
        """own: the parameters of `before`."""
        ctx.save_for_backward(x, weight, *own)
        ctx.before, ctx.dtype = before, dtype
        inputs = x if before is None else before(x)
        return matmul.linear(inputs.to(dtype), weight.to(dtype), bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight, *own = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            inputs = x if ctx.before is None else ctx.before(x)
        rows = gradient.flatten(0, -2)
        of_inputs = matmul.matmul(rows, weight.to(ctx.dtype)).unflatten(0, gradient.shape[:-1])
        of_weight = of_bias = None
        if any(ctx.needs_input_grad[3:5]):
            seen = inputs.detach().to(ctx.dtype).flatten(0, -2)
            of_weight = matmul.matmul(rows.t(), seen).to(weight.dtype)
            of_bias = rows.sum(0).to(weight.dtype)
        of_x, *of_own = torch.autograd.grad(inputs, (x, *own), of_inputs.to(inputs.dtype))
        return (of_x, None, None, of_weight, of_bias, *of_own)
