"""Wraps the fused linear loss as an autograd function, and as a custom operator for torch.compile.

Both call `smile.from_hidden.fused_loss`. In a compiled program the loss is a single custom
operator, which Dynamo does not trace, because shapes in the loss depend on the values of labels.
"""

import ast

import torch
from torch import Tensor

from smile.from_hidden import fused_loss
from smile.labels import check_labels, check_weights
from smile.mixture import LossInputs, Settings

NO_SECOND_DERIVATIVE = (
    "the fused linear loss has no second derivative; compute the objective from logits"
)


def mixture_from_hidden(hidden, weight, bias, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return (loss, parts). parts: the detached loss of each objective, in the settings' order.

    See `fused_loss` for shapes. A sharded head causes a graph break in a compiled program.
    """
    if not torch.compiler.is_compiling() or inputs.shards is not None:
        return _eager(hidden, weight, bias, inputs)
    *tensors, settings, dtype, needs_grad, _ = inputs
    static_args = (settings.text(), dtype, needs_grad)
    return _operator(hidden, weight, bias, *tensors, None, *static_args)[:2]


@torch.compiler.disable
def _eager(*arguments) -> tuple[Tensor, Tensor]:
    return _MixtureFromHidden.apply(*arguments)


class _MixtureFromHidden(torch.autograd.Function):
    """Maps hidden (B, N, D), weight, bias and inputs to (loss, parts); see `fused_loss`.

    `parts` has no gradient.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, inputs):
        ctx.save_for_backward(hidden, weight, bias)
        loss, parts, ctx.gradients = fused_loss(hidden, weight, bias, inputs)
        ctx.inputs = inputs
        ctx.mark_non_differentiable(parts)
        return loss, parts

    @staticmethod
    def backward(ctx, d_loss, _):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(NO_SECOND_DERIVATIVE)
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None or ctx.inputs.defer_grad:
            *_, gradients = fused_loss(*ctx.saved_tensors, ctx.inputs, d_loss)
        else:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(d_loss)
        cast_gradients = (
            None if g is None else g.to(x.dtype) for x, g in zip(ctx.saved_tensors, gradients)
        )
        return (*cast_gradients, None)


def _build_inputs(tensors, text, dtype, needs_grad) -> LossInputs:
    return LossInputs(*tensors, Settings(*ast.literal_eval(text)), dtype, needs_grad)


@torch.library.custom_op(
    "smile::mixture",
    schema="(Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, Tensor? sampled, "
    "Tensor? segments, Tensor? weights, Tensor? factors, Tensor? d_loss, str settings, "
    "ScalarType dtype, bool[] needs_grad) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    mutates_args=(),
    # The operator synchronises to read the number of labels, which a CUDA graph does not support.
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _operator(hidden, weight, bias, *rest):
    """Return (loss, parts, d_hidden, d_weight, d_bias). A gradient that is not needed is empty.

    rest: the other arguments of the schema. Labels and token weights are checked when the operator
    runs, because they have no values during compilation.
    """
    *tensors, d_loss, text, dtype, needs_grad = rest
    inputs = _build_inputs(tensors, text, dtype, needs_grad)
    check_labels(inputs.labels, len(weight), inputs.settings.ignore_index)
    check_weights(inputs.weights)
    loss, parts, gradients = fused_loss(hidden, weight, bias, inputs, d_loss)
    return (loss, parts, *(parts.new_empty(0) if g is None else g for g in gradients))


@_operator.register_fake
def _(hidden, weight, bias, *rest):
    *tensors, d_loss, text, dtype, needs_grad = rest
    inputs = _build_inputs(tensors, text, dtype, needs_grad)
    labels, has_gradients = inputs.labels, d_loss is not None or not inputs.defer_grad
    wide_dtype = torch.promote_types(dtype, torch.float32)
    shape = labels.shape if inputs.settings.reduction == "none" else ()
    sizes = [
        x.shape if has_gradients and needed else 0
        for x, needed in zip((hidden, weight, bias), needs_grad)
    ]
    sizes = [shape, (len(inputs.settings.weights), *shape), *sizes]
    return tuple(labels.new_empty(size, dtype=wide_dtype) for size in sizes)


def _save_context(ctx, inputs, output):
    ctx.static_args = inputs[9:]  # settings, dtype and needs_grad; inputs[8] is d_loss
    ctx.save_for_backward(*inputs[:8], *output[2:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, d_loss, *_):
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(NO_SECOND_DERIVATIVE)
    inputs, gradients = ctx.saved_tensors[:8], ctx.saved_tensors[8:]
    if _build_inputs(inputs[3:], *ctx.static_args).defer_grad:
        gradients = _operator(*inputs, d_loss, *ctx.static_args)[2:]
    else:
        gradients = [gradient * d_loss for gradient in gradients]
    needs_grad = ctx.static_args[-1]
    cast_gradients = (
        g.to(x.dtype) if needed else None for x, g, needed in zip(inputs, gradients, needs_grad)
    )
    return (*cast_gradients, *[None] * 9)


_operator.register_autograd(_backward, setup_context=_save_context)
