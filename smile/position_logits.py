"""Defines what a loss of single tokens reads: logits of a position, and the caption's tokens."""

import math
from typing import NamedTuple, Optional

from torch import Tensor

from smile.labels import caption_types


class EarlierTokens(NamedTuple):
    """The token types of captions, and which of them occur before each of R positions.

    types: (C, L), see `caption_types`. is_earlier, is_label: bool (R, L); column j is about column
    j of the caption's `types`. is_earlier: true in exactly one column of each distinct label that
    occurs before the position. is_label: true in all columns that equal the position's label.
    """

    types: Tensor
    is_earlier: Tensor
    is_label: Tensor


def earlier_tokens(labels: Tensor, ignore_index: int) -> EarlierTokens:
    """Find the earlier tokens of all R = C * L positions. labels: (C, L), one caption per row."""
    types, distinct = caption_types(labels, ignore_index)
    is_label = types.unsqueeze(1) == labels.unsqueeze(2)  # (C, L, L)
    count_before = is_label.cumsum(1) - is_label.long()
    is_earlier = (count_before > 0) & distinct.unsqueeze(1)
    return EarlierTokens(types, is_earlier.flatten(0, 1), is_label.flatten(0, 1))


class PositionLogits(NamedTuple):
    """The logits that a `LikelihoodLoss` reads at R positions.

    total: (R,), the logsumexp of all logits. label: (R,), the label's logit. caption_logits:
    (R, L), the logits of all labels of the caption, before and after the position, one column each.
    The last two are None unless the loss `looks_back`.
    """

    total: Tensor
    label: Tensor
    caption_logits: Optional[Tensor] = None
    earlier: Optional[EarlierTokens] = None

    @property
    def log_p(self) -> Tensor:
        """The label's log-probability (R,)."""
        return self.label - self.total

    @property
    def earlier_probabilities(self) -> Tensor:
        """The probabilities (R, L) of earlier tokens; 0 for other tokens."""
        log_p = self.caption_logits - self.total.unsqueeze(1)
        return log_p.masked_fill(~self.earlier.is_earlier, -math.inf).exp()
