"""The fused linear loss as an autograd function, and as a custom operator for torch.compile.

Both call `smile.from_hidden`. In a compiled program the loss is one operator, because shapes inside
it depend on the labels.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from smile.from_hidden import loss_and_parts, losses_and_gradients
from smile.head import Transform, computed_in
from smile.labels import check_labels, check_weights
from smile.mixture import LossInputs, Mixture

NO_SECOND = "the fused linear loss has no second derivative; compute the objective from logits"


def mixture_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    labels: Tensor,
    words: Optional[Tensor],
    segments: Optional[Tensor],
    weights: Optional[Tensor],
    mixture: Mixture,
    reduction: str,
    transform: Transform,
    shards: Any,
) -> tuple[Tensor, Tensor]:
    """The loss, and its detached parts in the order of the weights; see `Objective.from_hidden`.

    Under autocast, logits are computed in autocast's dtype, as by a linear layer. A sharded head
    causes a graph break in a compiled program.
    """
    differentiate = torch.is_grad_enabled()
    wanted = [differentiate and x is not None and x.requires_grad for x in (hidden, weight, bias)]
    batch, dtype = (labels, words, segments, weights), computed_in(hidden)
    if torch.compiler.is_compiling() and shards is None:
        settings = (mixture.text(), reduction, *transform, dtype, wanted)
        return _operator(hidden, weight, bias, *batch, *settings)[:2]
    inputs = LossInputs(*batch, mixture, reduction, transform, dtype, tuple(wanted), shards)
    return _eager(hidden, weight, bias, inputs)


@torch.compiler.disable
def _eager(*arguments) -> tuple[Tensor, Tensor]:
    return _MixtureFromHidden.apply(*arguments)


class _MixtureFromHidden(torch.autograd.Function):
    """hidden (B, N, D), weight, bias, inputs -> the loss, a scalar or (B, N), and its parts.

    The parts (len(weights), ...) have no gradient.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, inputs):
        ctx.save_for_backward(hidden, weight, bias)
        loss, parts, ctx.gradients = loss_and_parts(hidden, weight, bias, inputs)
        ctx.inputs = inputs
        ctx.mark_non_differentiable(parts)
        return loss, parts

    @staticmethod
    def backward(ctx, d_loss, _):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(NO_SECOND)
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None or ctx.inputs.defer_grad:
            _, gradients = losses_and_gradients(*ctx.saved_tensors, ctx.inputs, d_loss)
        else:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(d_loss)
        typed = (None if g is None else g.to(x.dtype) for x, g in zip(ctx.saved_tensors, gradients))
        return (*typed, None)


_ARGUMENTS = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, Tensor? words, Tensor? segments, "
    "Tensor? weights, str mixture, str reduction, float scale, float? softcap, ScalarType dtype, "
    "bool[] wanted"
)
# The operator synchronises to read the number of labels, which a CUDA graph does not support.
_KIND = {"mutates_args": (), "tags": (torch.Tag.cudagraph_unsafe,)}


def _inputs(*arguments) -> LossInputs:
    """Make LossInputs of the operator's arguments after hidden, weight and bias."""
    *tensors, text, reduction, scale, softcap, dtype, wanted = arguments
    mixture, transform = Mixture.from_text(text), Transform(scale, softcap)
    return LossInputs(*tensors, mixture, reduction, transform, dtype, tuple(wanted), None)


@torch.library.custom_op(
    "smile::mixture", schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", **_KIND
)
def _operator(hidden, weight, bias, *others):
    """The loss, its parts, and the gradients of hidden, weight and bias (empty if not wanted).

    Labels and weights are checked here, because they have no values during compilation.
    """
    inputs = _inputs(*others)
    check_labels(inputs.labels, len(weight), inputs.mixture.ignore_index)
    check_weights(inputs.weights)
    loss, parts, gradients = loss_and_parts(hidden, weight, bias, inputs)
    return (loss, parts, *(parts.new_empty(0) if g is None else g for g in gradients))


@torch.library.custom_op(
    "smile::mixture_backward",
    schema=f"(Tensor d_loss, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    **_KIND,
)
def _backward_operator(d_loss, hidden, weight, bias, *others):
    """The gradients of hidden, weight and bias (empty if not wanted), given the loss's gradient."""
    _, gradients = losses_and_gradients(hidden, weight, bias, _inputs(*others), d_loss)
    return tuple(d_loss.new_empty(0) if g is None else g for g in gradients)


def _like_gradients(tensors, inputs, made):
    wide = torch.promote_types(inputs.dtype, torch.float32)
    return tuple(
        inputs.labels.new_empty(x.shape if made and want else 0, dtype=wide)
        for x, want in zip(tensors, inputs.wanted)
    )


@_operator.register_fake
def _(hidden, weight, bias, *others):
    inputs = _inputs(*others)
    gradients = _like_gradients((hidden, weight, bias), inputs, not inputs.defer_grad)
    loss = gradients[0].new_empty(inputs.labels.shape if inputs.reduction == "none" else ())
    return (loss, loss.new_empty(len(inputs.mixture.weights), *loss.shape), *gradients)


@_backward_operator.register_fake
def _(d_loss, hidden, weight, bias, *others):
    return _like_gradients((hidden, weight, bias), _inputs(*others), True)


def _save(ctx, inputs, output):
    ctx.how = inputs[7:]
    ctx.defer_grad = _inputs(*inputs[3:]).defer_grad
    ctx.save_for_backward(*inputs[:7], *output[2:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, d_loss, *_):
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(NO_SECOND)
    inputs, gradients = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
    if ctx.defer_grad:
        gradients = _backward_operator(d_loss, *inputs, *ctx.how)
    else:
        gradients = [gradient * d_loss for gradient in gradients]
    wanted = ctx.how[-1]
    typed = (g.to(x.dtype) if want else None for x, g, want in zip(inputs, gradients, wanted))
    return (*typed, *(None for _ in range(4 + len(ctx.how))))


_operator.register_autograd(_backward, setup_context=_save)
