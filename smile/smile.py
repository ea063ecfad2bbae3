"""Computes the SMILE loss (semipermeable maximum likelihood): a softmax over a caption's tokens."""

import functools
from typing import Optional

import torch
from torch import Tensor, nn

from smile.captions import reduce_by_caption
from smile.labels import at_least_float32, caption_types, first_labelled


def smile_loss(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    first_token_mle: bool = False,
    reduction: str = "mean",
    segments: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
) -> Tensor:
    """Compute the cross-entropy of each label under a softmax over its caption's distinct tokens.

    - logits: (B, N, V), any float type. `logits[b, n]` predicts `labels[b, n]`.
    - labels: int64 (B, N), `ignore_index` where not scored.
    - first_token_mle: score the first labelled token of each caption over the whole vocabulary.
    - reduction: "mean" over labelled tokens, "sum" or "none".
    - segments: integers (B, N) that divide rows into captions, see `smile.captions`. If None, each
      row is one caption.
    - weights: floats, (B, N) for tokens or (B,) for rows. A weight of 0 ignores a token, and a
      weight of 2 counts it twice.

    Returns a scalar, or (B, N) with reduction "none". A caption without labels has a loss of 0. The
    additional memory is O(B N N), because only logits of the caption's tokens are gathered. With
    segments the labelled logits are also copied.

    Source: SMILE (arXiv 2306.13460), the subset V_D of section 3; first-token MLE as in the
    authors' training code.
    """
    loss_fn = functools.partial(
        smile_losses, ignore_index=ignore_index, first_token_mle=first_token_mle
    )
    options = (ignore_index, reduction, segments, weights)
    return reduce_by_caption(loss_fn, (logits,), labels, *options)


def smile_losses(
    logits: Tensor, labels: Tensor, ignore_index: int, first_token_mle: bool
) -> Tensor:
    """Return SMILE's losses (B, N), one caption per row. Unlabelled positions: arbitrary losses."""
    types, distinct = caption_types(labels, ignore_index)  # (B, N) each
    columns = types.unsqueeze(1).expand(-1, labels.size(1), -1)  # (B, N, N)
    subset = at_least_float32(logits.gather(2, columns))
    subset = subset.masked_fill((labels == ignore_index).unsqueeze(2), 0)
    target = subset.diagonal(dim1=1, dim2=2)  # at position n, column n is the label
    losses = subset.masked_fill(~distinct.unsqueeze(1), float("-inf")).logsumexp(2) - target
    if first_token_mle:
        losses = with_first_token_mle(losses, logits, labels, ignore_index)
    return losses


def with_first_token_mle(
    losses: Tensor, logits: Tensor, labels: Tensor, ignore_index: int
) -> Tensor:
    """Replace the loss of each caption's first label by cross-entropy over the whole vocabulary.

    losses, labels: (B, N), one caption per row. logits: (B, N, V).
    """
    if labels.size(1) == 0:
        return losses
    is_first = first_labelled(labels, ignore_index)
    position = is_first.int().argmax(dim=1)  # (B,)
    rows = torch.arange(labels.size(0), device=labels.device)
    first_logits = at_least_float32(logits[rows, position])  # (B, V)
    label = labels[rows, position].masked_fill(~is_first.any(dim=1), 0)
    mle = first_logits.logsumexp(1) - first_logits.gather(1, label.unsqueeze(1)).squeeze(1)
    return torch.where(is_first, mle.unsqueeze(1), losses)


class SmileLoss(nn.Module):
    """`smile_loss` as a module. logits: (B, N, V); labels: (B, N)."""

    def __init__(
        self, ignore_index: int = -100, first_token_mle: bool = False, reduction: str = "mean"
    ):
        super().__init__()
        self.ignore_index = ignore_index
        self.first_token_mle = first_token_mle
        self.reduction = reduction

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
    ) -> Tensor:
        settings = (self.ignore_index, self.first_token_mle, self.reduction)
        return smile_loss(logits, labels, *settings, segments, weights)
