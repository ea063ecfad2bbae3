"""Computes the losses of SMILE's two ablations: random subsetting and reverse subsetting."""

from typing import Optional

import torch
from torch import Tensor

from smile.captions import reduce_by_caption
from smile.labels import at_least_float32, caption_types


def random_subset_loss(
    logits: Tensor,
    labels: Tensor,
    words: Tensor,
    ignore_index: int = -100,
    first_token_mle: bool = False,
    pad_token_id: Optional[int] = None,
    reduction: str = "mean",
    segments: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
) -> Tensor:
    """Compute the cross-entropy of each label under a softmax over the label and random tokens.

    logits: (B, N, V); labels: int64 (B, N); words: int64 (B, N, R), R random tokens for each label,
    which the caller samples uniformly from the vocabulary. A repeated token counts once, and
    `pad_token_id` does not count. Other arguments and the result are as in
    `smile_loss`. Source: SMILE (arXiv 2306.13460), the ablation "random subsetting".
    """

    def loss_fn(logits, words, labels):
        label = labels.masked_fill(labels == ignore_index, 0)
        columns, repeated = random_subset(label, words, pad_token_id)
        return random_subset_losses(logits.gather(2, columns), repeated)

    return reduce_by_caption(
        loss_fn,
        (logits, words),
        labels,
        ignore_index,
        reduction,
        segments,
        weights,
        first_token_mle,
    )


def random_subset(
    label: Tensor, words: Tensor, pad_token_id: Optional[int]
) -> tuple[Tensor, Tensor]:
    """Return the tokens of each subset, int64 (..., 1 + R), and a mask of repeated tokens.

    label: (...), which is the first token of its subset. words: (..., R), random tokens. A word
    equal to `pad_token_id` is replaced by the label, so that it counts as a repetition.
    """
    label = label.unsqueeze(-1)
    if pad_token_id is not None:
        words = words.where(words != pad_token_id, label)
    tokens = torch.cat([label, words], dim=-1)
    return tokens, (tokens.unsqueeze(-1) == tokens.unsqueeze(-2)).tril(diagonal=-1).any(-1)


def random_subset_losses(subset: Tensor, repeated: Tensor) -> Tensor:
    """Return losses (B, N). subset: (B, N, 1 + R), the logits of `random_subset`'s tokens."""
    subset = at_least_float32(subset)
    return subset.masked_fill(repeated, float("-inf")).logsumexp(2) - subset[..., 0]


def reverse_subset_loss(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    first_token_mle: bool = False,
    pad_token_id: Optional[int] = None,
    reduction: str = "mean",
    segments: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
) -> Tensor:
    """Compute the cross-entropy of each label under a softmax without the caption's other tokens.

    The softmax is over the label and all tokens of the vocabulary that are not in the caption. As
    in the authors' code, it also leaves out `pad_token_id` in rows that end in padding, unless
    `segments` are given. logits: (B, N, V); labels: int64 (B, N). Other arguments and the result
    are as in `smile_loss`. Source: SMILE (arXiv 2306.13460), the ablation "reverse subsetting".
    """

    padding = pad_token_id if segments is None else None

    def loss_fn(logits, labels):
        excluded = reverse_excluded_tokens(labels, ignore_index, padding)
        columns = excluded.unsqueeze(1).expand(-1, labels.size(1), -1)  # (B, N, N or N + 1)
        label = labels.masked_fill(labels == ignore_index, 0).unsqueeze(2)
        logits = at_least_float32(logits)
        target = logits.gather(2, label)  # (B, N, 1)
        subset = logits.scatter(2, columns, float("-inf")).scatter(2, label, target)
        return (subset.logsumexp(2, keepdim=True) - target).squeeze(2)

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


def reverse_excluded_tokens(
    labels: Tensor, ignore_index: int, pad_token_id: Optional[int]
) -> Tensor:
    """Return the tokens that reverse subsetting leaves out of the softmax, int64 (B, N or N + 1).

    The first N columns are the `caption_types`, in which tokens may be repeated. If `pad_token_id`
    is given, another column has this id where the row ends in padding, and elsewhere a token of the
    caption. The softmax keeps the label, although the label is one of the caption's tokens.
    """
    types, _ = caption_types(labels, ignore_index)
    if pad_token_id is None:
        return types
    padded = labels[:, -1:] == ignore_index
    return torch.cat([types, types[:, :1].masked_fill(padded, pad_token_id)], 1)
