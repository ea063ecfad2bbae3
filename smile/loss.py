"""SMILE (semipermeable maximum likelihood, arXiv 2306.13460): a softmax over a caption's own words.

Let z[n, v] be the logit of word v at position n, and y[n] the label. MLE's softmax is over the
vocabulary V, and SMILE's is over V_D, the distinct words of the caption:

    MLE[n]   = log(sum of exp z[n, v] over all v in V)   - z[n, y[n]]
    SMILE[n] = log(sum of exp z[n, v] over all v in V_D) - z[n, y[n]]

So MLE lowers every word that is not the label, also a richer one. SMILE lowers only the caption's
other words: a caption that ends early, or skips a word for a later one, still costs.

Each function takes one caption per row: logits (B, N, V) of any float type, of which logits[b, n]
predict labels[b, n], and labels int64 (B, N), IGNORE where nothing is scored. It returns float
losses (B, N), which are arbitrary where nothing is scored.
"""

from collections.abc import Callable

import torch
from torch import Tensor

IGNORE = -100
NEVER = -1e9  # a logit that adds nothing to a softmax; -inf would make the gradient of no words nan
# A logit at or below this value is a mask (-inf or float16's minimum), not a prediction.
MAX_MASKED_LOGIT = torch.finfo(torch.float16).min / 2


def smile_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross-entropy of each label under a softmax over its caption's words."""
    words, is_new = own_words(labels)  # (B, N) each
    subset = logits.gather(2, words.unsqueeze(1).expand(-1, labels.size(1), -1))  # (B, N, N)
    subset = subset.masked_fill((labels == IGNORE).unsqueeze(2), 0)
    return subset_losses(subset, is_new)


def own_words(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the words of each caption (B, N), and the set V_D among them: bool (B, N).

    A word is in the set where it occurs for the first time. Unscored positions have word 0, which
    is not in the set there.
    """
    scored = labels != IGNORE
    words = labels.where(scored, 0)
    repeats = (words.unsqueeze(2) == words.unsqueeze(1)) & scored.unsqueeze(1)  # (B, N, N)
    return words, scored & ~repeats.tril(-1).any(2)


def subset_losses(subset: Tensor, is_new: Tensor) -> Tensor:
    """Return the losses (B, N) of a softmax over J words.

    subset: (B, N, J), their logits at each position, where word n is the label of position n.
    is_new: bool (B, J), false for a repeated word, which counts once.
    """
    subset = at_least_float32(subset)
    label = subset.diagonal(dim1=1, dim2=2)
    return subset.masked_fill(~is_new.unsqueeze(1), NEVER).logsumexp(2) - label


def mle_losses(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Compute the cross-entropy of each label under a softmax over the vocabulary.

    Label smoothing is over the words whose logits are not masked. The function does not call
    F.cross_entropy, because Liger replaces it by a kernel that overwrites the logits.
    """
    logits = at_least_float32(logits)
    label = logits.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    if label_smoothing:
        unmasked = logits > MAX_MASKED_LOGIT
        mean = logits.where(unmasked, 0).sum(2) / unmasked.sum(2).clamp(min=1)
        label = (1 - label_smoothing) * label + label_smoothing * mean
    return logits.logsumexp(2) - label


def with_first_token_mle(logits: Tensor, labels: Tensor, losses: Callable) -> Tensor:
    """Compute other losses, but MLE for each caption's first label, as the authors' code does."""
    first = (labels != IGNORE).int().argmax(1, keepdim=True)  # (B, 1)
    rows = torch.arange(len(labels), device=labels.device).unsqueeze(1)
    mle = mle_losses(logits[rows, first], labels[rows, first])
    return mle.where(first_labelled(labels), losses(logits, labels))


def first_labelled(labels: Tensor) -> Tensor:
    """Return bool (B, N), true at the first label of each caption."""
    scored = labels != IGNORE
    return scored & (scored.cumsum(1) == 1)


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert half-precision logits to float32, for an exact softmax; keep wider logits."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
