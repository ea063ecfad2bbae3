"""Semipermeable maximum likelihood: the softmax ranges over the caption's own tokens."""

import functools
from typing import Optional

import torch
from torch import Tensor, nn

from smile.captions import reduced_by_caption
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
    vocabulary. A row is one caption, unless `segments`, integers (B, N), number those of its
    positions. weights: floats of tokens (B, N) or of rows (B,); 0 is as no label, 2 as twice.
    Returns a scalar, or (B, N) with reduction "none". A caption without labels adds nothing. The
    extra memory is O(B N N): only the caption's own logits are gathered; with segments a copy of
    the labelled logits is made.

    Source: SMILE (arXiv 2306.13460), the subset V_D of section 3; first-token MLE as in the
    authors' training code.
    """
    losses_of = functools.partial(
        smile_losses, ignore_index=ignore_index, first_token_mle=first_token_mle
    )
    how = (ignore_index, reduction, segments, weights)
    return reduced_by_caption(losses_of, (logits,), labels, *how)


def smile_losses(
    logits: Tensor, labels: Tensor, ignore_index: int, first_token_mle: bool
) -> Tensor:
    """The losses (B, N) of labels (B, N), each row one caption; any where there is no label."""
    types, distinct = caption_types(labels, ignore_index)  # (B, N) each
    columns = types.unsqueeze(1).expand(-1, labels.size(1), -1)  # (B, N, N)
    own = at_least_float32(logits.gather(2, columns))
    own = own.masked_fill((labels == ignore_index).unsqueeze(2), 0)
    target = own.diagonal(dim1=1, dim2=2)  # column n of row n is the label's logit
    losses = own.masked_fill(~distinct.unsqueeze(1), float("-inf")).logsumexp(2) - target
    if first_token_mle:
        losses = with_first_token_mle(losses, logits, labels, ignore_index)
    return losses


def with_first_token_mle(
    losses: Tensor, logits: Tensor, labels: Tensor, ignore_index: int
) -> Tensor:
    """Losses (B, N) with that of each first labelled token taken over the whole vocabulary."""
    if labels.size(1) == 0:
        return losses
    first = first_labelled(labels, ignore_index)
    position = first.int().argmax(dim=1)  # (B,)
    captions = torch.arange(labels.size(0), device=labels.device)
    row = at_least_float32(logits[captions, position])  # (B, V)
    label = labels[captions, position].masked_fill(~first.any(dim=1), 0)
    mle = row.logsumexp(1) - row.gather(1, label.unsqueeze(1)).squeeze(1)
    return torch.where(first, mle.unsqueeze(1), losses)


class SmileLoss(nn.Module):
    """`smile_loss` with its settings; logits (B, N, V) and labels (B, N) as there."""

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
