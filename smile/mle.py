"""Computes the loss of maximum likelihood: cross-entropy over the whole vocabulary."""

from typing import Optional

import torch
from torch import Tensor

from smile.captions import reduce_by_caption
from smile.labels import MAX_MASKED_LOGIT, at_least_float32


def mle_loss(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weights: Optional[Tensor] = None,
) -> Tensor:
    """Compute the cross-entropy of each label under a softmax over the whole vocabulary.

    logits: (B, N, V), any float type; labels: int64 (B, N), `logits[b, n]` predicts `labels[b, n]`.
    weights: floats, (B, N) for tokens or (B,) for rows. Returns a scalar, or (B, N) with reduction
    "none". This differs from `F.cross_entropy` in two ways: the mean over no labels is 0, and label
    smoothing excludes tokens whose logits are masked. BLIP's label smoothing is 0.1.
    """
    check_smoothing(label_smoothing)

    def loss_fn(logits, labels):
        logits = at_least_float32(logits)
        # Liger replaces F.cross_entropy by a kernel that overwrites the logits, so that ATen's
        # operator is called instead.
        losses = torch.ops.aten.cross_entropy_loss(
            logits.flatten(0, 1), labels.flatten(), reduction=0, ignore_index=ignore_index
        ).view_as(labels)
        if label_smoothing > 0:
            unmasked = logits > MAX_MASKED_LOGIT
            mean_logit = logits.where(unmasked, 0).sum(2) / unmasked.sum(2).clamp(min=1)
            smoothed = logits.logsumexp(2) - mean_logit
            losses = (1 - label_smoothing) * losses + label_smoothing * smoothed
        return losses

    return reduce_by_caption(
        loss_fn, (logits,), labels, ignore_index, reduction, segments=None, weights=weights
    )


def check_smoothing(label_smoothing: float) -> None:
    """Raise ValueError unless 0 <= label_smoothing <= 1."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; give a number from 0 to 1")
