"""Maximum likelihood: cross-entropy over the whole vocabulary."""

from typing import Optional

import torch
from torch import Tensor

from smile.labels import at_least_float32, check_labels, check_shapes, reduce, weigh


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
    "none". Unlike `F.cross_entropy`, the mean over no labelled token is 0. BLIP smooths labels by
    0.1.
    """
    check_shapes(logits, labels)
    labels, weights = weigh(labels, weights, ignore_index)
    check_labels(labels, logits.size(2), ignore_index)
    # Not F.cross_entropy, for which Liger puts a kernel that writes into its input.
    losses = torch.ops.aten.cross_entropy_loss(
        at_least_float32(logits).flatten(0, 1),
        labels.flatten(),
        reduction=0,  # none
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    return reduce(losses.view_as(labels), labels, ignore_index, reduction, weights)
