"""Defines what a loss of single tokens reads: logits of a position, and the caption's tokens."""

import math
from typing import NamedTuple, Optional

from torch import Tensor

from smile.labels import caption_types


class EarlierTokens(NamedTuple):
    """The token types of captions, and which of them occur before each position.

    types: (C, L), see `caption_types`. is_earlier, is_label: bool (C, L, L); element [c, n, j] is
    about position n and column j of `types`. is_earlier: true in exactly one column of each
    distinct label that occurs before the position. is_label: true in all columns that equal the
    position's label.
    """

    types: Tensor
    is_earlier: Tensor
    is_label: Tensor

    def at(self, positions: Tensor) -> "EarlierTokens":
        """Return the types and masks of R positions, (R, L) each.

        positions: (R,), indices in the flattened captions, C * L.
        """
        captions = positions.div(self.types.size(1), rounding_mode="floor")
        is_earlier, is_label = self.is_earlier.flatten(0, 1), self.is_label.flatten(0, 1)
        return EarlierTokens(self.types[captions], is_earlier[positions], is_label[positions])


def earlier_tokens(labels: Tensor, ignore_index: int) -> EarlierTokens:
    """Find the earlier tokens of each position. labels: (C, L), one caption per row."""
    types, distinct = caption_types(labels, ignore_index)
    is_label = types.unsqueeze(1) == labels.unsqueeze(2)
    count_before = is_label.cumsum(1) - is_label.long()
    return EarlierTokens(types, (count_before > 0) & distinct.unsqueeze(1), is_label)


class PositionLogits(NamedTuple):
    """The logits that a `LikelihoodLoss` reads at R positions.

    total: (R,), the logsumexp of all logits. label: (R,), the label's logit. caption_logits:
    (R, L), the logits of all labels of the caption, before and after the position, one column each.
    is_earlier, is_label: (R, L), see `EarlierTokens`. The last three are None unless the loss
    `looks_back`.
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
