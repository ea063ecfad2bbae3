"""Defines the base classes of the alternatives to SMILE, which are losses per token.

A `LikelihoodLoss` is cheap in the fused linear loss, because it shares MLE's softmax. A `LogitLoss`
needs a copy of the logits. Subclasses define `losses`, which the fused linear loss calls. For a
loss from logits, `Objective` calls `caption_losses`. Truncation has neither method: it is a
`TokenLoss` whose `factors` multiply MLE's losses.
"""

import math
from dataclasses import dataclass, fields
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from smile.labels import at_least_float32, earlier_tokens


class PositionLogits(NamedTuple):
    """The logits that a `LikelihoodLoss` reads at R positions.

    total: (R,), the logsumexp of all logits. label: (R,), the label's logit. caption_logits:
    (R, L), the logits of all labels of the caption, before and after the position, one column each.
    is_earlier: (R, L), true in exactly one column of each distinct label that occurs before the
    position. is_label: (R, L), true in all columns that equal the position's label. The last three
    are None unless the loss `looks_back`.
    """

    total: Tensor
    label: Tensor
    caption_logits: Optional[Tensor] = None
    is_earlier: Optional[Tensor] = None
    is_label: Optional[Tensor] = None

    @property
    def log_p(self) -> Tensor:
        """The label's log-probability (R,)."""
        return self.label - self.total

    @property
    def earlier_probabilities(self) -> Tensor:
        """The probabilities (R, L) of earlier tokens; 0 for other tokens."""
        log_p = (self.caption_logits - self.total.unsqueeze(1)).masked_fill(
            ~self.is_earlier, -math.inf
        )
        return log_p.exp()


@dataclass(frozen=True)
class TokenLoss:
    """A loss with one value per token.

    The fields of a subclass are its parameters, and each has a default. The constructor raises a
    one-line ValueError for a parameter of the wrong type or out of range. title: the name in
    tables. reads_logits: whether the loss needs all logits of a position. looks_back: whether it
    needs the caption's earlier tokens.
    """

    title = ""
    reads_logits = looks_back = False

    def __post_init__(self):
        for field in fields(self):
            name, field_type, value = field.name, type(field.default), getattr(self, field.name)
            if field_type in (int, float):
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                is_number = is_number and math.isfinite(value) and value == field_type(value)
                self.require(
                    is_number, name, "a number" if field_type is float else "a whole number"
                )
                # YAML 1.2 reads 1e4 as a float, which becomes an int here if the field is an int.
                object.__setattr__(self, name, field_type(value))
        self.check()

    def require(self, condition: bool, name: str, allowed: str) -> None:
        """Raise ValueError unless `condition`. allowed: the allowed values, for the message."""
        if not condition:
            raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {allowed}")

    def check(self) -> None:
        """Check the ranges of parameters by calling `require`."""


class LikelihoodLoss(TokenLoss):
    """A loss that is a function of `PositionLogits`."""

    def losses(self, position_logits: PositionLogits) -> Tensor:
        """Return the losses (R,)."""
        raise NotImplementedError

    def losses_from_fields(self, *values: Optional[Tensor]) -> Tensor:
        """Return the losses (R,). values: the fields of `PositionLogits`, in order."""
        return self.losses(PositionLogits(*values))

    def caption_losses(self, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        """Return the losses (C, L) of logits (C, L, V) and labels (C, L), one caption per row.

        Losses of unlabelled positions are arbitrary.
        """
        logits = at_least_float32(logits)
        label = labels.masked_fill(labels == ignore_index, 0).unsqueeze(2)
        values = [logits.logsumexp(2).flatten(), logits.gather(2, label).flatten()]
        if self.looks_back:
            types, *masks = earlier_tokens(labels, ignore_index)
            columns = types.unsqueeze(1).expand(-1, labels.size(1), -1)  # (C, L, L)
            values += [x.flatten(0, 1) for x in (logits.gather(2, columns), *masks)]
        return self.losses_from_fields(*values).view_as(labels)


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
