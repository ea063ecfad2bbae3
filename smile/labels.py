"""Labels and their weights: checked, counted, and the token types of a caption."""

from typing import Optional

import torch
from torch import Tensor

# Logits at or below it are masks (-inf, float16's minimum), not predictions.
RULED_OUT = torch.finfo(torch.float16).min / 2


def caption_types(labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The token types of each caption, as columns to gather.

    labels: int64 (B, N). Returns `types`, int64 (B, N), in which every entry is an id of the
    caption's own labels (0 throughout where a caption has none), and `distinct`, bool (B, N), that
    is true once for each type.
    """
    labelled = labels != ignore_index
    if labels.size(1) == 0:
        return labels, labelled
    first = labelled.int().argmax(dim=1, keepdim=True)  # (B, 1)
    filler = labels.gather(1, first).masked_fill(~labelled.any(dim=1, keepdim=True), 0)
    types = torch.where(labelled, labels, filler)
    same = types.unsqueeze(2) == types.unsqueeze(1)  # (B, N, N)
    distinct = ~same.tril(diagonal=-1).any(dim=2)
    return types, distinct


def check_shapes(logits: Tensor, labels: Tensor) -> None:
    """Raise ValueError unless logits are (B, N, V) and labels (B, N)."""
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)} and labels {tuple(labels.shape)}; they must be "
            "(B, N, V) and (B, N)"
        )


def check_labels(labels: Tensor, vocabulary: int, ignore_index: int) -> None:
    """Raise ValueError for a label that is not in the head's `vocabulary`.

    On a CPU alone: an accelerator would have to be waited for, and raises an error itself. Not
    while a program is compiled, which has no values.
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = (labels != ignore_index) & ((labels < 0) | (labels >= vocabulary))
    if wrong.any():
        caption, position = wrong.nonzero()[0].tolist()
        found = labels[caption, position].item()
        raise ValueError(
            f"the label at caption {caption}, position {position} is {found}, but the vocabulary "
            f"has {vocabulary} tokens (from 0) and ignore_index is {ignore_index}"
        )


def first_labelled(labels: Tensor, ignore_index: int) -> Tensor:
    """bool (B, N): true at the first labelled position of each caption that has one."""
    labelled = labels != ignore_index
    return labelled & (labelled.cumsum(dim=1) == 1)


def at_least_float32(logits: Tensor) -> Tensor:
    """Half-precision logits in float32, for an exact softmax; others unchanged."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def weigh(
    labels: Tensor, weights: Optional[Tensor], ignore_index: int
) -> tuple[Tensor, Optional[Tensor]]:
    """Labels without those of weight 0, and the weights (B, N), None if none are given.

    labels: (B, N). weights: floats (B, N) of tokens or (B,) of rows, at least 0. Raises ValueError
    for another shape, and, on a CPU, for one that is negative or not finite.
    """
    if weights is None:
        return labels, None
    if not isinstance(weights, Tensor):
        raise ValueError(f"weights is a {type(weights).__name__}; give a tensor of floats")
    if weights.shape not in (labels.shape, labels.shape[:1]):
        raise ValueError(
            f"weights is {tuple(weights.shape)}; for labels {tuple(labels.shape)} give one for "
            f"each token, or for each row {tuple(labels.shape[:1])}"
        )
    weights = weights.detach().to(labels.device, torch.promote_types(weights.dtype, torch.float32))
    check_weights(weights)
    if weights.dim() == 1:
        weights = weights.unsqueeze(1).expand_as(labels)
    labels = labels.masked_fill(weights == 0, ignore_index)
    return labels, weights.masked_fill(labels == ignore_index, 0)


def check_weights(weights: Optional[Tensor]) -> None:
    """Raise ValueError for one that is negative or not finite; when, as in `check_labels`."""
    if weights is None or weights.device.type != "cpu" or torch.compiler.is_compiling():
        return
    unfit = ~(weights.isfinite() & (weights >= 0))
    if unfit.any():
        found = weights[unfit][0].item()
        raise ValueError(f"a weight is {found}; weights are finite numbers, at least 0")


def count(labels: Tensor, weights: Optional[Tensor], ignore_index: int) -> Tensor:
    """The divisor of a mean: the number of labels, or the sum of their weights; a scalar."""
    return (labels != ignore_index).sum() if weights is None else weights.sum()


def reduce(
    losses: Tensor,
    labels: Tensor,
    ignore_index: int,
    reduction: str,
    weights: Optional[Tensor] = None,
) -> Tensor:
    """Losses (B, N) to their mean over labelled tokens, their sum, or, with "none", themselves.

    Each is multiplied by its weight, and the mean divides by the sum of weights, which `weigh`
    returns. Ignored positions are 0, and so is the mean of no token.
    """
    losses = losses.masked_fill(labels == ignore_index, 0)
    if weights is not None:
        weights = weights.to(losses.dtype)
        losses = losses * weights
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    check_reduction(reduction)
    divisor = count(labels, weights, ignore_index)
    return losses.sum() / divisor.masked_fill(divisor == 0, 1)


def check_reduction(reduction: str) -> None:
    """Raise ValueError for an unknown one."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")
