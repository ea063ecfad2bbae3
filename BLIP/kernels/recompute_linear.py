"""Computes a linear layer with the fastest matmul, and keeps less for the backward pass."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from BLIP.kernels import matmul

# Recompute only if x and the weight together have at least this many elements. In smaller layers,
# recomputing saves too little memory.
MIN_ELEMENTS = 2**19
# Call oneDNN only for at least this many multiplications. With fewer, the call costs more time than
# it saves.
MIN_PRODUCTS = 2**21


def recompute_linear(
    x: Tensor, linear: nn.Linear, input_fn: Optional[Callable[[Tensor], Tensor]] = None
) -> Tensor:
    """Return linear(input_fn(x)): x (..., in) -> (..., out). Under autocast, use its dtype.

    input_fn: a function such as GELU, or a LayerNorm; None for the identity. Autograd would save
    the input and the output of `input_fn` and, under autocast, a 16-bit copy of the weight. This
    function saves only x, and the backward pass recomputes the rest. Small layers are not
    recomputed.

    `BLIP.kernels.matmul` computes the products of recomputed layers, and large float32 products
    where oneDNN is faster. A subclass of nn.Linear, such as an adapter, is called unchanged.
    """
    device = x.device.type
    input_fn = input_fn or _identity
    if type(linear) is not nn.Linear or linear.bias is None or torch.compiler.is_compiling():
        return linear(input_fn(x))
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    needs_grad = torch.is_grad_enabled() and x.requires_grad and linear.weight.requires_grad
    is_large = x.numel() + linear.weight.numel() >= MIN_ELEMENTS
    recompute = needs_grad and is_large and (autocast or input_fn is not _identity)
    if not recompute:
        x = input_fn(x)
        input_fn = _identity
        use_onednn = matmul.uses_onednn_fp32(x.device, dtype) and not autocast
        if not use_onednn or x.numel() * linear.out_features < MIN_PRODUCTS:
            return linear(x)
    parameters = input_fn.parameters() if isinstance(input_fn, nn.Module) else ()
    with torch.autocast(device, enabled=False):
        return _RecomputeLinear.apply(x, input_fn, dtype, linear.weight, linear.bias, *parameters)


def _identity(x: Tensor) -> Tensor:
    return x


class _RecomputeLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, input_fn, dtype: torch.dtype, weight: Tensor, bias: Tensor, *extra):
        """extra: the parameters of `input_fn`."""
        ctx.save_for_backward(x, weight, *extra)
        ctx.input_fn = input_fn
        ctx.dtype = dtype
        inputs = input_fn(x)
        return matmul.linear(inputs.to(dtype), weight.to(dtype), bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight, *extra = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            inputs = ctx.input_fn(x)
        rows = gradient.flatten(0, -2)
        input_grad = matmul.matmul(rows, weight.to(ctx.dtype)).unflatten(0, gradient.shape[:-1])
        weight_grad = bias_grad = None
        if any(ctx.needs_input_grad[3:5]):
            flat = inputs.detach().to(ctx.dtype).flatten(0, -2)
            weight_grad = matmul.matmul(rows.t(), flat).to(weight.dtype)
            bias_grad = rows.sum(0).to(weight.dtype)
        x_grad, *extra_grads = torch.autograd.grad(inputs, (x, *extra), input_grad.to(inputs.dtype))
        return x_grad, None, None, weight_grad, bias_grad, *extra_grads
