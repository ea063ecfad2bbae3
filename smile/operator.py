"""The mixture from hidden states, as autograd calls it and as compiled programs do.

Either way it is computed by `smile.from_hidden`. In a compiled program it is an operator, which
stands in the graph as one piece, since what is computed depends on labels.
"""

from typing import Optional

import torch
from torch import Tensor

from smile.from_hidden import loss_and_parts, losses_and_gradients
from smile.head import Transform, computed_in
from smile.labels import check_labels, check_weights
from smile.mixture import LossInputs, Mixture
from smile.sharded import Shards

NO_SECOND = "the objective from hidden states has no second derivative; give it logits instead"


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
    shards: Optional[Shards],
) -> tuple[Tensor, Tensor]:
    """The loss and its parts, detached, in the order of the weights; see `Objective.from_hidden`.

    Under autocast logits are computed in its dtype, as a linear layer's would be.
    """
    differentiate = torch.is_grad_enabled()
    wanted = [differentiate and x is not None and x.requires_grad for x in (hidden, weight, bias)]
    without_gradient = (labels, words, segments, weights)
    dtype = computed_in(hidden)
    if torch.compiler.is_compiling():
        shared = ("", None, 0)
        if shards is not None:
            shared = (shards.group.group_name, shards.first, shards.vocabulary)
        how = (mixture.text(), reduction, *transform, dtype, wanted, *shared)
        return _operator(hidden, weight, bias, *without_gradient, *how)[:2]
    given = LossInputs(
        *without_gradient, mixture, reduction, transform, dtype, tuple(wanted), shards
    )
    return _MixtureFromHidden.apply(hidden, weight, bias, given)


class _MixtureFromHidden(torch.autograd.Function):
    """(hidden (B, N, D), weight, bias, given) -> the loss, a scalar or (B, N), and the parts
    (len(weights), ...), which have no gradient."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, given):
        ctx.save_for_backward(hidden, weight, bias)
        loss, parts, ctx.gradients = loss_and_parts(hidden, weight, bias, given)
        ctx.given = given
        ctx.mark_non_differentiable(parts)
        return loss, parts

    @staticmethod
    def backward(ctx, d_loss, _):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(NO_SECOND)
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None or ctx.given.waits():
            _, gradients = losses_and_gradients(*ctx.saved_tensors, ctx.given, d_loss)
        else:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(d_loss)
        typed = (None if g is None else g.to(x.dtype) for x, g in zip(ctx.saved_tensors, gradients))
        return (*typed, None)


_ARGUMENTS = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, Tensor? words, Tensor? segments, "
    "Tensor? weights, str mixture, str reduction, float scale, float? softcap, ScalarType dtype, "
    "bool[] wanted, str group, int? first, int vocabulary"
)
# It waits for the number of labels, which no CUDA graph can.
_KIND = {"mutates_args": (), "tags": (torch.Tag.cudagraph_unsafe,)}


def _given(*arguments):
    """From the operator's, but hidden, weight and bias. A group of processes goes by its name."""
    *tensors, text, reduction, scale, softcap, dtype, wanted, group, first, vocabulary = arguments
    shards = None
    if group:
        from torch.distributed.distributed_c10d import _resolve_process_group

        shards = Shards(_resolve_process_group(group), first, vocabulary)
    how = (Mixture.from_text(text), reduction, Transform(scale, softcap), dtype, tuple(wanted))
    return LossInputs(*tensors, *how, shards)


@torch.library.custom_op(
    "smile::mixture", schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", **_KIND
)
def _operator(hidden, weight, bias, *others):
    """The loss, the parts, and the gradients of hidden, weight and bias, empty where there is none.

    Values of labels and weights are looked at here; they are not there when a program is compiled.
    """
    given = _given(*others)
    vocabulary = len(weight) if given.shards is None else given.shards.vocabulary
    check_labels(given.labels, vocabulary, given.mixture.ignore_index)
    check_weights(given.weights)
    loss, parts, gradients = loss_and_parts(hidden, weight, bias, given)
    return (loss, parts, *(parts.new_empty(0) if g is None else g for g in gradients))


@torch.library.custom_op(
    "smile::mixture_backward",
    schema=f"(Tensor d_loss, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    **_KIND,
)
def _backward_operator(d_loss, hidden, weight, bias, *others):
    """The gradients of hidden, weight and bias for that of the loss, empty where there is none."""
    _, gradients = losses_and_gradients(hidden, weight, bias, _given(*others), d_loss)
    return tuple(d_loss.new_empty(0) if g is None else g for g in gradients)


def _like_gradients(inputs, given, made):
    wide = torch.promote_types(given.dtype, torch.float32)
    return tuple(
        given.labels.new_empty(x.shape if made and want else 0, dtype=wide)
        for x, want in zip(inputs, given.wanted)
    )


@_operator.register_fake
def _(hidden, weight, bias, *others):
    given = _given(*others)
    gradients = _like_gradients((hidden, weight, bias), given, not given.waits())
    loss = gradients[0].new_empty(given.labels.shape if given.reduction == "none" else ())
    return (loss, loss.new_empty(len(given.mixture.weights), *loss.shape), *gradients)


@_backward_operator.register_fake
def _(d_loss, hidden, weight, bias, *others):
    return _like_gradients((hidden, weight, bias), _given(*others), True)


def _keep(ctx, inputs, output):
    ctx.how = inputs[7:]
    ctx.waits = _given(*inputs[3:]).waits()
    ctx.save_for_backward(*inputs[:7], *output[2:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, d_loss, *_):
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(NO_SECOND)
    inputs, gradients = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
    if ctx.waits:
        gradients = _backward_operator(d_loss, *inputs, *ctx.how)
    else:
        gradients = [gradient * d_loss for gradient in gradients]
    wanted = ctx.how[5]
    typed = (g.to(x.dtype) if want else None for x, g, want in zip(inputs, gradients, wanted))
    return (*typed, *(None for _ in range(len(_ARGUMENTS.split(",")) - 3)))


_operator.register_autograd(_backward, setup_context=_keep)
