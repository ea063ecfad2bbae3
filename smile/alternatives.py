"""Other objectives: SMILE's two ablations, and published losses against bland or wrong text.

To add an objective, write a function here and put it into WEIGHTS or LOSSES, with the range of its
parameters. Its keyword arguments are the objective's parameters in a configuration.
"""

import math
from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from smile.loss import (
    IGNORE,
    at_least_float32,
    first_labelled,
    mle_losses,
    own_words,
    subset_losses,
)

# MLE times a weight that has no gradient. These functions map MLE's losses to the weights.


def focal(mle: Tensor, gamma: float = 2.0) -> Tensor:
    """(1 - p)^gamma, with the label's probability p = exp(-mle). gamma 0 is MLE.

    Source: arXiv 1708.02002, for images. github.com/vyraun/long-tailed detaches the weight.
    """
    return (-torch.expm1(-mle)) ** gamma


def dft(mle: Tensor) -> Tensor:
    """p: dynamic fine-tuning. Source: arXiv 2508.05629, github.com/yongliang-wu/DFT."""
    return (-mle).exp()


def mixce(mle: Tensor, eta: float = 0.5) -> Tensor:
    """eta + (1 - eta) p: forward and approximate reverse cross-entropy. eta 1 is MLE, 0 is DFT.

    Source: arXiv 2305.16958, github.com/bloomberg/mixce-acl2023.
    """
    return eta + (1 - eta) * dft(mle)


def tailr(mle: Tensor, gamma: float = 0.5, min_weight: float = 0.2) -> Tensor:
    """p / (gamma + (1 - gamma) p), raised to min_weight. gamma 0 is MLE.

    Source: arXiv 2302.13344, github.com/thu-coai/TaiLr.
    """
    inverse_p = mle.clamp(max=80).exp()  # finite, so that gamma 0 is not 0 * inf
    return (1 / (gamma * inverse_p + 1 - gamma)).clamp(min_weight, 1)


def weighed(logits: Tensor, labels: Tensor, weigh: Callable) -> Tensor:
    mle = mle_losses(logits, labels)
    return weigh(mle.detach().clamp(min=0)) * mle


# Losses. These functions map logits (B, N, V) and labels (B, N) to losses (B, N), as in loss.py.


def selective_eos(logits: Tensor, labels: Tensor, eos_token_id: Optional[int] = None) -> Tensor:
    """MLE with a softmax that has EOS only where EOS is the label.

    eos_token_id: None means the end token of the captioner's tokenizer (`Objective.with_tokens`).
    Source: arXiv 2402.14545, github.com/yuezih/less-is-more.
    """
    if eos_token_id is None or eos_token_id >= logits.size(2):
        raise ValueError(
            f"selective_eos: eos_token_id is {eos_token_id}; give the id of the end token, below "
            f"{logits.size(2)}"
        )
    is_eos = torch.arange(logits.size(2), device=logits.device) == eos_token_id
    left_out = is_eos & (labels != eos_token_id).unsqueeze(2)
    return mle_losses(logits.masked_fill(left_out, -math.inf), labels)


def gem(logits: Tensor, labels: Tensor, beta: float = 0.7) -> Tensor:
    """The sum over words v of q[v] (z[v] - z[label]), where q = softmax(z / beta) has no gradient.

    The loss may be negative. Source: arXiv 2408.16673 with a linear h, github.com/liziniu/GEM.
    """
    logits = at_least_float32(logits)
    difference = logits - logits.gather(2, labels.clamp(min=0).unsqueeze(2))
    q = (logits.detach() / beta).softmax(2)
    return (q * difference.masked_fill(q == 0, 0)).sum(2)  # for a masked word, not 0 * -inf


def unlikelihood(logits: Tensor, labels: Tensor, alpha: float = 1.0) -> Tensor:
    """MLE - alpha * the sum of log max(1 - p(c), 1e-5) over the caption's earlier words c.

    The sum is over distinct words, without the label. Source: arXiv 1908.04319, token level;
    github.com/facebookresearch/unlikelihood_training.
    """
    mle, earlier, is_label = _earlier_words(logits, labels)
    penalties = (1 - earlier).clamp(min=1e-5).log().masked_fill(is_label, 0)
    return mle - alpha * penalties.sum(2)


def scalegrad(logits: Tensor, labels: Tensor, gamma: float = 0.2) -> Tensor:
    """-log(p' + 1e-8), where p' is p with all words new to the caption multiplied by gamma.

    p' sums to 1 again. gamma 1 is MLE but for 1e-8. Source: Lin, Han and Joty, "Straight to the
    Gradient", ICML 2021, github.com/shawnlimn/ScaleGrad.
    """
    mle, earlier, is_label = _earlier_words(logits, labels)
    scale = gamma ** (~is_label.any(2)).to(mle)
    total = gamma + (1 - gamma) * earlier.sum(2)
    return -(scale * (-mle).exp() / total + 1e-8).log()


def _earlier_words(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return MLE's losses (B, N), the probability (B, N, N) of each earlier word, and its mask.

    A probability is in the column of the word's first occurrence, and other columns are 0. The mask
    is true where an earlier word is the label.
    """
    words, is_new = own_words(labels)
    columns = words.unsqueeze(1).expand(-1, labels.size(1), -1)
    logits = at_least_float32(logits)
    log_p = logits.gather(2, columns) - logits.logsumexp(2, keepdim=True)  # (B, N, N)
    is_earlier = torch.ones_like(log_p).tril(-1).bool() & is_new.unsqueeze(1)
    earlier = log_p.masked_fill(~is_earlier, -math.inf).exp()
    is_label = (columns == labels.unsqueeze(2)) & is_earlier
    return -log_p.diagonal(dim1=1, dim2=2), earlier, is_label


# SMILE's ablations, in the paper's section 5.


def reverse(
    logits: Tensor, labels: Tensor, pad_token_id: Optional[int] = None, first_token_mle: bool = True
) -> Tensor:
    """Reverse subsetting: a softmax over the label and all words that are not in the caption.

    As in the authors' code, pad_token_id is left out, too, in rows that end in padding.
    """
    nothing = logits.size(2)  # a column that is dropped again
    padding = labels.new_full((len(labels), 1), nothing)
    if pad_token_id is not None:
        padding = padding.masked_fill(labels[:, -1:] == IGNORE, pad_token_id)
    excluded = torch.zeros(len(labels), nothing + 1, dtype=torch.bool, device=labels.device)
    excluded = excluded.scatter(1, labels.where(labels != IGNORE, padding), True)[:, None, :-1]
    label = labels.clamp(min=0).unsqueeze(2)
    keeps_all = (first_labelled(labels) & first_token_mle).unsqueeze(2)
    left_out = (excluded & ~keeps_all).scatter(2, label, False)
    kept = at_least_float32(logits).masked_fill(left_out, -math.inf)
    return -kept.log_softmax(2).gather(2, label).squeeze(2)


def random(logits: Tensor, labels: Tensor, sample: Callable) -> Tensor:
    """Random subsetting: a softmax over the label and random words. sample: `random_words`."""
    words, is_new = sample(labels)
    subset = logits.gather(2, words).flatten(0, 1).unsqueeze(1)  # (B * N, 1, J)
    return subset_losses(subset, is_new.flatten(0, 1)).view_as(labels)


def random_words(labels: Tensor, vocabulary: int, size: int, pad_token_id: Optional[int]):
    """Return each label and `size` words, (B, N, 1 + size), and a mask of them.

    Words are sampled from torch's global generator. The mask is false for repeated words and for
    pad_token_id.
    """
    label = labels.clamp(min=0).unsqueeze(2)
    words = torch.randint(vocabulary, (*labels.shape, size), device=labels.device)
    if pad_token_id is not None:
        words = words.where(words != pad_token_id, label)
    words = torch.cat([label, words], 2)
    return words, ~(words.unsqueeze(3) == words.unsqueeze(2)).tril(-1).any(3)


ABOVE_0 = (1e-9, math.inf)
WEIGHTS = {focal: (0, math.inf), dft: (), mixce: (0, 1), tailr: (0, 1)}
LOSSES = {
    selective_eos: (0, math.inf),
    unlikelihood: (0, math.inf),
    gem: ABOVE_0,
    scalegrad: (ABOVE_0[0], 1),
}
ALTERNATIVES = {loss.__name__: loss for loss in (*LOSSES, *WEIGHTS)}
