"""The losses of alternatives where all logits are there: what they are by definition."""

from typing import Optional

import torch
from torch import Tensor

from smile.alternatives.interface import Likelihoods, OfLikelihoods, OfLogits, TokenLoss
from smile.captions import by_caption
from smile.labels import at_least_float32, caption_types


def token_losses(
    loss: TokenLoss, logits: Tensor, labels: Tensor, segments: Optional[Tensor], ignore_index: int
) -> Tensor:
    """(B, N) of logits (B, N, V) and labels (B, N); any value where there is no label.

    A row is one caption, unless `segments` (B, N) number those of its positions.
    """

    def losses_of(logits: Tensor, labels: Tensor) -> Tensor:  # (C, L, V), (C, L)
        logits = at_least_float32(logits)
        if isinstance(loss, OfLogits):
            return _of_all(loss, logits, labels, ignore_index)
        return _of_likelihoods(loss, logits, labels, ignore_index)

    if segments is None:
        return losses_of(logits, labels)
    return by_caption(losses_of, (logits,), labels, segments, ignore_index)


def earlier_words(labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The words of each caption (C, L), and, (C, L, L) by position and word, which of them it had
    before, each once, and which of them are the position's own label."""
    types, distinct = caption_types(labels, ignore_index)
    is_label = types.unsqueeze(1) == labels.unsqueeze(2)
    before = is_label.cumsum(1) - is_label.long()  # how often
    return types, (before > 0) & distinct.unsqueeze(1), is_label


def _of_all(loss: OfLogits, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    labelled = labels != ignore_index
    found = loss.losses(logits[labelled], labels[labelled])
    return torch.zeros_like(logits[..., 0]).masked_scatter(labelled, found)


def _of_likelihoods(
    loss: OfLikelihoods, logits: Tensor, labels: Tensor, ignore_index: int
) -> Tensor:
    label = labels.masked_fill(labels == ignore_index, 0).unsqueeze(2)
    known = [logits.logsumexp(2).flatten(), logits.gather(2, label).flatten()]
    if loss.looks_back:
        types, *which = earlier_words(labels, ignore_index)
        columns = types.unsqueeze(1).expand(-1, labels.size(1), -1)  # (C, L, L)
        known += [x.flatten(0, 1) for x in (logits.gather(2, columns), *which)]
    return loss.losses(Likelihoods(*known)).view_as(labels)
