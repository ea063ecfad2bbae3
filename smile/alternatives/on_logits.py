"""Computes the alternatives' losses from logits. These are their definitions."""

import torch
from torch import Tensor

from smile.alternatives.interface import Likelihoods, OfLikelihoods, OfLogits, TokenLoss
from smile.labels import at_least_float32, caption_types


def token_losses(loss: TokenLoss, ignore_index: int, logits: Tensor, labels: Tensor) -> Tensor:
    """The losses (C, L) of logits (C, L, V) and labels (C, L), one caption per row.

    Losses of unlabelled positions are arbitrary.
    """
    logits = at_least_float32(logits)
    if isinstance(loss, OfLogits):
        return _of_all(loss, logits, labels, ignore_index)
    return _of_likelihoods(loss, logits, labels, ignore_index)


def earlier_words(labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of each caption, (C, L), and two masks (C, L, L) by position and token.

    The first mask is true once for each token that is a label before the position. The second mask
    is true for tokens that are the position's label.
    """
    types, distinct = caption_types(labels, ignore_index)
    is_label = types.unsqueeze(1) == labels.unsqueeze(2)
    count_before = is_label.cumsum(1) - is_label.long()
    return types, (count_before > 0) & distinct.unsqueeze(1), is_label


def _of_all(loss: OfLogits, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    labelled = labels != ignore_index
    losses = loss.losses(logits[labelled], labels[labelled])
    return torch.zeros_like(logits[..., 0]).masked_scatter(labelled, losses)


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
