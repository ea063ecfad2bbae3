"""Computes the SMILE loss (semipermeable maximum likelihood): a softmax over a caption's tokens."""

from typing import Optional

from torch import Tensor, nn

from smile.captions import reduce_by_caption
from smile.labels import at_least_float32, caption_types


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

    def loss_fn(logits, labels):
        types, distinct = caption_types(labels, ignore_index)  # (B, N) each
        columns = types.unsqueeze(1).expand(-1, labels.size(1), -1)  # (B, N, N)
        subset = at_least_float32(logits.gather(2, columns))
        subset = subset.masked_fill((labels == ignore_index).unsqueeze(2), 0)
        target = subset.diagonal(dim1=1, dim2=2)  # at position n, column n is the label
        return subset.masked_fill(~distinct.unsqueeze(1), float("-inf")).logsumexp(2) - target

    return reduce_by_caption(
        loss_fn,
        (logits,),
        labels,
        ignore_index,
        reduction,
        segments,
        weights,
        first_token_mle,
    )


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
        return smile_loss(
            logits,
            labels,
            self.ignore_index,
            self.first_token_mle,
            self.reduction,
            segments,
            weights,
        )
