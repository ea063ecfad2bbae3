"""The interface of an alternative to SMILE: a loss of single tokens with its parameters.

There are two kinds, which differ in their cost in the fused linear loss: a loss of likelihoods
shares MLE's softmax, a loss of logits needs a copy of them. `of_captions` is the definition.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Optional, get_type_hints

import torch
from torch import Tensor

from smile.labels import at_least_float32, caption_types


class Likelihoods(NamedTuple):
    """The likelihoods of R positions.

    total: (R,), the logsumexp of all logits; label: (R,), the label's logit. earlier: (R, L),
    logits of the caption's tokens, which count where `is_earlier`: where the token comes before
    this position, each once. is_label: (R, L), whether such a token is the position's label. The
    last three are None for a loss that does not look back.
    """

    total: Tensor
    label: Tensor
    earlier: Optional[Tensor] = None
    is_earlier: Optional[Tensor] = None
    is_label: Optional[Tensor] = None

    @property
    def log_p(self) -> Tensor:
        """The label's log-probability (R,)."""
        return self.label - self.total

    @property
    def p_of_earlier(self) -> Tensor:
        """The probabilities (R, L) of earlier tokens; 0 for other tokens."""
        log_p = (self.earlier - self.total.unsqueeze(1)).masked_fill(~self.is_earlier, -math.inf)
        return log_p.exp()


@dataclass(frozen=True)
class TokenLoss(ABC):
    """Its fields are its parameters, each with a default. Its constructor raises ValueError, in one
    line, for a parameter of another type or out of its range. title: its name in tables.
    reads_logits: whether it reads all logits of a position.
    """

    title = ""
    reads_logits = False

    def __post_init__(self):
        hints = get_type_hints(type(self))
        for field in fields(self):
            self._check_kind(field.name, getattr(self, field.name), hints[field.name])
        self.check()

    def _check_kind(self, name: str, value: Any, hint: Any) -> None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        number = number and math.isfinite(value)
        if hint is float:
            self.require(number, name, "a number")
            object.__setattr__(self, name, float(value))
        elif hint is int:
            self.require(number and value == int(value), name, "a whole number")
            object.__setattr__(self, name, int(value))  # YAML has 1e4 for a float

    def require(self, holds: bool, name: str, allowed: str) -> None:
        """Raise ValueError with the allowed values unless it holds."""
        if not holds:
            raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {allowed}")

    @abstractmethod
    def check(self) -> None:
        """Check the parameters' ranges, by `require`."""


class OfLikelihoods(TokenLoss):
    """A loss of `Likelihoods`. looks_back: whether it reads the caption's earlier tokens."""

    looks_back = False

    @abstractmethod
    def losses(self, words: Likelihoods) -> Tensor:
        """(R,)."""

    def of_captions(self, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        """(C, L) of logits (C, L, V) and labels (C, L), a caption in a row; any without a label."""
        logits = at_least_float32(logits)
        label = labels.masked_fill(labels == ignore_index, 0).unsqueeze(2)
        known = [logits.logsumexp(2).flatten(), logits.gather(2, label).flatten()]
        if self.looks_back:
            types, *which = earlier_words(labels, ignore_index)
            columns = types.unsqueeze(1).expand(-1, labels.size(1), -1)  # (C, L, L)
            known += [x.flatten(0, 1) for x in (logits.gather(2, columns), *which)]
        return self.losses(Likelihoods(*known)).view_as(labels)


class Weighed(OfLikelihoods):
    """MLE's loss of each token, times a detached weight, a function of its probability."""

    def losses(self, words: Likelihoods) -> Tensor:
        with torch.no_grad():
            # Rounding can leave a probability above 1.
            weight = self.weight(words.log_p.clamp(max=0))
        return -weight * words.log_p

    @abstractmethod
    def weight(self, log_p: Tensor) -> Tensor:
        """(R,) of the labels' log-probabilities (R,)."""


class OfLogits(TokenLoss):
    """A loss of all logits of a position."""

    reads_logits = True

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(R,) of logits (R, V), float32 or wider, and labels (R,)."""

    def of_captions(self, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        """(C, L), as that of `OfLikelihoods`."""
        labelled = labels != ignore_index
        logits = at_least_float32(logits)
        found = self.losses(logits[labelled], labels[labelled])
        return torch.zeros_like(logits[..., 0]).masked_scatter(labelled, found)


def earlier_words(labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of each caption (C, L), and, (C, L, L) by position and token, which of them were
    labels before the position, each once, and which of them are the position's label."""
    types, distinct = caption_types(labels, ignore_index)
    is_label = types.unsqueeze(1) == labels.unsqueeze(2)
    before = is_label.cumsum(1) - is_label.long()  # how often
    return types, (before > 0) & distinct.unsqueeze(1), is_label
