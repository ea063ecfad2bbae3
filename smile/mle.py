"""Maximum likelihood: cross-entropy over the whole vocabulary."""

from typing import Optional

import torch
from torch import Tensor

from smile.captions import reduced_by_caption
from smile.labels import RULED_OUT, at_least_float32


def mle_loss(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weights: Optional[Tensor] = None,
) -> Tensor:
    """Cross-entropy of each label under a softmax over the whole vocabulary.

    logits: (B, N, V), any float type; labels: int64 (B, N), `logits[b, n]` predicts `labels[b, n]`.
    weights: floats of tokens (B, N) or of rows (B,). Returns a scalar, or (B, N) with reduction
    "none". Unlike `F.cross_entropy`, the mean over no labelled token is 0, and labels are smoothed
    over the vocabulary entries whose logits are not masked. BLIP smooths them by 0.1.
    """
    check_smoothing(label_smoothing)

    def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
        logits = at_least_float32(logits)
        apart = label_smoothing > 0 and _may_rule_out(logits)
        # Not F.cross_entropy, which Liger replaces by a kernel that writes into its input.
        losses = torch.ops.aten.cross_entropy_loss(
            logits.flatten(0, 1),
            labels.flatten(),
            reduction=0,  # none
            ignore_index=ignore_index,
            label_smoothing=0.0 if apart else label_smoothing,
        ).view_as(labels)
        if apart:
            possible = logits > RULED_OUT
            mean = logits.where(possible, 0).sum(2) / possible.sum(2).clamp(min=1)
            losses = (1 - label_smoothing) * losses
            losses = losses + label_smoothing * (logits.logsumexp(2) - mean)
        return losses

    return reduced_by_caption(losses_of, (logits,), labels, ignore_index, reduction, None, weights)


def _may_rule_out(logits: Tensor) -> bool:
    """Whether a logit may be a mask. True off the CPU, where a check would wait for the device."""
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return True
    return not bool((logits > RULED_OUT).all())


def check_smoothing(label_smoothing: float) -> None:
    """Raise ValueError unless 0 <= label_smoothing <= 1."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; give a number from 0 to 1")
