"""Checks and counts labels and weights, finds the distinct tokens of captions, reduces losses."""

from typing import Optional

import torch
from torch import Tensor

# A logit at or below this value is a mask (-inf or float16's minimum), not a prediction.
MAX_MASKED_LOGIT = torch.finfo(torch.float16).min / 2


def caption_types(labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return the token types of each caption, which are its distinct token ids.

    labels: int64 (B, N), one caption per row. Returns (types, distinct). types: int64 (B, N), the
    labels, where the caption's first label replaces `ignore_index` (0 if the caption has no label).
    distinct: bool (B, N), true where an id occurs for the first time in its row of `types`.
    """
    labelled = labels != ignore_index
    if labels.size(1) == 0:
        return labels, labelled
    first = labelled.int().argmax(1, keepdim=True)  # (B, 1)
    filler = labels.gather(1, first).masked_fill(~labelled.any(1, keepdim=True), 0)
    types = torch.where(labelled, labels, filler)
    same = types.unsqueeze(2) == types.unsqueeze(1)  # (B, N, N)
    distinct = ~same.tril(diagonal=-1).any(2)
    return types, distinct


def check_labels(labels: Tensor, vocabulary: int, ignore_index: int) -> None:
    """Raise ValueError for a label outside the vocabulary. vocabulary: the number of tokens.

    Labels are checked only on a CPU: on an accelerator the check would need a synchronisation, and
    CUDA raises an error itself. During compilation tensors have no values and are not checked.
    """
    if not labels.is_cpu or torch.compiler.is_compiling():
        return
    is_invalid = (labels != ignore_index) & ((labels < 0) | (labels >= vocabulary))
    if is_invalid.any():
        caption, position = is_invalid.nonzero()[0].tolist()
        label = labels[caption, position].item()
        raise ValueError(
            f"the label at caption {caption}, position {position} is {label}, but the vocabulary "
            f"has {vocabulary} tokens (from 0) and ignore_index is {ignore_index}"
        )


def first_labelled(labels: Tensor, ignore_index: int) -> Tensor:
    """Return bool (B, N), true at the first labelled position of each caption."""
    labelled = labels != ignore_index
    return labelled & (labelled.cumsum(1) == 1)


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert half-precision logits to float32, for an exact softmax; keep wider logits."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def prepare_weights(
    labels: Tensor, weights: Optional[Tensor], ignore_index: int
) -> tuple[Tensor, Optional[Tensor]]:
    """Return (labels, weights), (B, N) each, in which the same positions are ignored.

    labels: (B, N). weights: floats >= 0, (B, N) for tokens or (B,) for rows, or None, which is
    returned as None. A label becomes `ignore_index` where the weight is 0. A weight becomes 0 where
    the label is `ignore_index`. Raises ValueError for another shape and, on a CPU, for a weight
    that is negative or not finite.
    """
    if weights is None:
        return labels, None
    if not isinstance(weights, Tensor):
        raise ValueError(f"weights is a {type(weights).__name__}; give a tensor of floats")
    if weights.shape not in (labels.shape, labels.shape[:1]):
        raise ValueError(
            f"weights is {tuple(weights.shape)}, but labels is {tuple(labels.shape)}; give one "
            "weight for each token or one for each row"
        )
    weights = weights.detach().to(labels.device, torch.promote_types(weights.dtype, torch.float32))
    check_weights(weights)
    if weights.dim() == 1:
        weights = weights.unsqueeze(1).expand_as(labels)
    labels = labels.masked_fill(weights == 0, ignore_index)
    return labels, weights.masked_fill(labels == ignore_index, 0)


def check_weights(weights: Optional[Tensor]) -> None:
    """Raise ValueError for a negative or non-finite weight. Like `check_labels`, only on a CPU."""
    if weights is None or not weights.is_cpu or torch.compiler.is_compiling():
        return
    is_invalid = ~(weights.isfinite() & (weights >= 0))
    if is_invalid.any():
        weight = weights[is_invalid][0].item()
        raise ValueError(f"a weight is {weight}; weights are finite numbers, at least 0")


def count_labels(labels: Tensor, weights: Optional[Tensor], ignore_index: int) -> Tensor:
    """Return the divisor of a mean loss: the number of labels, or the sum of weights; a scalar."""
    return (labels != ignore_index).sum() if weights is None else weights.sum()


def reduce_losses(
    losses: Tensor,
    labels: Tensor,
    ignore_index: int,
    reduction: str,
    weights: Optional[Tensor] = None,
) -> Tensor:
    """Reduce losses (B, N) by "mean" over labelled tokens, by "sum", or not at all by "none".

    Losses are multiplied by `weights`, (B, N) from `prepare_weights`, and the mean divides by the
    sum of weights. The losses of ignored positions are 0. The mean over no tokens is 0.
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
    divisor = count_labels(labels, weights, ignore_index)
    return losses.sum() / divisor.masked_fill(divisor == 0, 1)


def check_reduction(reduction: str) -> None:
    """Raise ValueError for an unknown reduction."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")
