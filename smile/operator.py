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

    See `fused_loss` for shapes. With a sharded head, a compiled program has a graph break here,
    because the operator does not take `inputs.shards`.
    """
    if not torch.compiler.is_compiling() or inputs.shards is not None:
        return _eager(hidden, weight, bias, inputs)
    settings, dtype, needs_grad, *tensors, _ = inputs
    loss, parts, *_ = _operator(
        hidden, weight, bias, None, settings.text(), dtype, needs_grad, *tensors
    )
    return loss, parts


class _MixtureFromHidden(torch.autograd.Function):
    """Maps hidden (B, N, D), weight, bias and inputs to (loss, parts); see `fused_loss`.

    `parts` has no gradient.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, inputs):
        ctx.save_for_backward(hidden, weight, bias)
        result = fused_loss(hidden, weight, bias, inputs)
        ctx.inputs = inputs
        ctx.gradients = result.gradients
        ctx.mark_non_differentiable(result.parts)
        return result.loss, result.parts

    @staticmethod
    def backward(ctx, d_loss, _):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(NO_SECOND_DERIVATIVE)
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None or ctx.inputs.defer_grad:
            gradients = fused_loss(*ctx.saved_tensors, ctx.inputs, d_loss).gradients
        else:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(d_loss)
        cast_gradients = (
            None if g is None else g.to(x.dtype) for x, g in zip(ctx.saved_tensors, gradients)
        )
        return *cast_gradients, None


_eager = torch.compiler.disable(_MixtureFromHidden.apply)


def _build_inputs(settings_text: str, *rest) -> LossInputs:
    """Build the inputs. rest: the fields of `LossInputs` after the settings, in order."""
    return LossInputs(Settings(*ast.literal_eval(settings_text)), *rest)


@torch.library.custom_op(
    "smile::mixture",
    schema="(Tensor hidden, Tensor weight, Tensor? bias, Tensor? d_loss, str settings_text, "
    "ScalarType dtype, bool[] needs_grad, Tensor labels, Tensor? sampled, Tensor? segments, "
    "Tensor? weights, Tensor? factors) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    mutates_args=(),
    # The operator synchronises to read the number of labels, which a CUDA graph does not support.
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _operator(hidden, weight, bias, d_loss, *rest):
    """Return (loss, parts, d_hidden, d_weight, d_bias). A gradient that is not needed is empty.

    rest: the arguments of `_build_inputs`. Labels and token weights are checked here, because they
    have no values while the callers are compiled.
    """
    inputs = _build_inputs(*rest)
    check_labels(inputs.labels, len(weight), inputs.settings.ignore_index)
    check_weights(inputs.weights)
    loss, parts, gradients = fused_loss(hidden, weight, bias, inputs, d_loss)
    return loss, parts, *(parts.new_empty(0) if g is None else g for g in gradients)


@_operator.register_fake
def _(hidden, weight, bias, d_loss, *rest):
    inputs = _build_inputs(*rest)
    labels = inputs.labels
    has_gradients = d_loss is not None or not inputs.defer_grad
    wide_dtype = torch.promote_types(inputs.dtype, torch.float32)
    loss_shape = labels.shape if inputs.settings.reduction == "none" else ()
    gradient_shapes = [
        x.shape if has_gradients and needed else 0
        for x, needed in zip((hidden, weight, bias), inputs.needs_grad)
    ]
    shapes = [loss_shape, (len(inputs.settings.weights), *loss_shape), *gradient_shapes]
    return tuple(labels.new_empty(shape, dtype=wide_dtype) for shape in shapes)


def _save_context(ctx, inputs, output):
    hidden, weight, bias, _, settings_text, dtype, needs_grad, *loss_tensors = inputs
    _, parts, *gradients = output
    ctx.static_arguments = (settings_text, dtype, needs_grad)
    ctx.save_for_backward(hidden, weight, bias, *gradients, *loss_tensors)
    ctx.mark_non_differentiable(parts, *gradients)


def _backward(ctx, d_loss, *_):
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(NO_SECOND_DERIVATIVE)
    hidden, weight, bias, d_hidden, d_weight, d_bias, *loss_tensors = ctx.saved_tensors
    rest = (*ctx.static_arguments, *loss_tensors)
    inputs = _build_inputs(*rest)
    if inputs.defer_grad:
        _, _, *gradients = _operator(hidden, weight, bias, d_loss, *rest)
    else:
        gradients = [gradient * d_loss for gradient in (d_hidden, d_weight, d_bias)]
    cast_gradients = [
        gradient.to(x.dtype) if needed else None
        for x, gradient, needed in zip((hidden, weight, bias), gradients, inputs.needs_grad)
    ]
    return *cast_gradients, None, *[None] * len(rest)


_operator.register_autograd(_backward, setup_context=_save_context)
