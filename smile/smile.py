"""Semipermeable maximum likelihood (SMILE): a softmax over the tokens of the caption."""

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
    """Cross-entropy of each label under a softmax over the token types of its caption.

    logits: (B, N, V), any float type; labels: int64 (B, N), `logits[b, n]` predicts `labels[b, n]`.
    With `first_token_mle` the first labelled token of each caption is scored over the whole
    vocabulary. A row is one caption, unless `segments`, integers (B, N), divide it; see
    `smile.captions`. weights: floats, (B, N) for tokens or (B,) for rows; a weight of 0 ignores a
    token, and 2 counts it twice. Returns a scalar, or (B, N) with reduction "none". A caption
    without labels has a loss of 0. The additional memory is O(B N N), because only logits of the
    caption's tokens are gathered. With segments the labelled logits are also copied.

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
    """SMILE's losses (B, N), one caption per row. Losses of unlabelled positions are arbitrary."""
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
    """Replace each caption's first loss by cross-entropy over the whole vocabulary."""
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
