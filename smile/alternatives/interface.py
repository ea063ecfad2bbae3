"""Defines the base classes of the alternatives to SMILE, which are losses per token.

A `LikelihoodLoss` is cheap in the fused linear loss, because it shares MLE's softmax. A `LogitLoss`
needs a copy of the logits. Subclasses define `losses`, which the fused linear loss calls. For a
loss from logits, `Objective` calls `caption_losses`. Truncation has neither method: it is a
`TokenLoss` whose `factors` multiply MLE's losses.
"""

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from smile.labels import at_least_float32
from smile.position_logits import PositionLogits, earlier_tokens


@dataclass(frozen=True)
class TokenLoss:
    """A loss with one value per token.

    The fields of a subclass are its parameters, and each has a default. The constructor raises a
    one-line ValueError for a number of the wrong type, and calls `check_parameters` for other
    errors. title: the name in tables. reads_logits: whether the loss needs all logits of a
    position. looks_back: whether it needs the caption's earlier tokens.
    """

    title = ""
    reads_logits = looks_back = False

    def __post_init__(self):
        for field in fields(self):
            number_type = type(field.default)
            value = getattr(self, field.name)
            if number_type not in (int, float):
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            is_valid = is_number and math.isfinite(value) and value == number_type(value)
            allowed = "a number" if number_type is float else "a whole number"
            self.require(is_valid, field.name, allowed)
            # YAML 1.2 reads 1e4 as a float, which becomes an int here if the field is an int.
            object.__setattr__(self, field.name, number_type(value))
        self.check_parameters()

    def require(self, condition: bool, name: str, allowed: str) -> None:
        """Raise ValueError unless `condition`. allowed: the allowed values, for the message."""
        if not condition:
            raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {allowed}")

    def check_parameters(self) -> None:
        """Check ranges, and types other than numbers, by calling `require`."""


class LikelihoodLoss(TokenLoss):
    """A loss that is a function of `PositionLogits`."""

    def losses(self, position_logits: PositionLogits) -> Tensor:
        """Return the losses (R,)."""
        raise NotImplementedError

    def caption_losses(self, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        """Return the losses (C, L) of logits (C, L, V) and labels (C, L), one caption per row.

        Losses of unlabelled positions are arbitrary.
        """
        logits = at_least_float32(logits)
        label = labels.masked_fill(labels == ignore_index, 0).unsqueeze(2)
        caption_logits = earlier = None
        if self.looks_back:
            earlier = earlier_tokens(labels, ignore_index)
            columns = earlier.types.unsqueeze(1).expand(-1, labels.size(1), -1)  # (C, L, L)
            caption_logits = logits.gather(2, columns).flatten(0, 1)
        total = logits.logsumexp(2).flatten()
        label_logit = logits.gather(2, label).flatten()
        position_logits = PositionLogits(total, label_logit, caption_logits, earlier)
        return self.losses(position_logits).view_as(labels)


class WeightedMle(LikelihoodLoss):
    """MLE's loss of each token, times a detached weight that depends on the label's probability."""

    def losses(self, position_logits: PositionLogits) -> Tensor:
        with torch.no_grad():
            # Rounding can make a probability larger than 1.
            weight = self.weight(position_logits.log_p.clamp(max=0))
        return -weight * position_logits.log_p

    def weight(self, log_p: Tensor) -> Tensor:
        """Return the weights (R,). log_p: the labels' log-probabilities (R,)."""
        raise NotImplementedError


class LogitLoss(TokenLoss):
    """A loss that is a function of all logits of a position."""

    reads_logits = True

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the losses (R,) of logits (R, V), float32 or wider, and labels (R,)."""
        raise NotImplementedError

    def caption_losses(self, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        """Return the losses (C, L); see `LikelihoodLoss.caption_losses`."""
        is_labelled = labels != ignore_index
        logits = at_least_float32(logits)
        losses = self.losses(logits[is_labelled], labels[is_labelled])
        return torch.zeros_like(logits[..., 0]).masked_scatter(is_labelled, losses)
