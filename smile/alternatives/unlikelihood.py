"""Implements unlikelihood training: MLE with a penalty on the caption's earlier tokens."""

from dataclasses import dataclass

from torch import Tensor

from smile.alternatives.interface import LikelihoodLoss
from smile.position_logits import PositionLogits

MIN_COMPLEMENT = 1e-5  # the lower bound of 1 - p in the penalty


@dataclass(frozen=True)
class Unlikelihood(LikelihoodLoss):
    """The loss is -log p - alpha * the sum of log max(1 - p(c), 1e-5) over earlier tokens c.

    p is the label's probability. The sum is over the distinct earlier tokens of the same caption,
    except the label. Source: arXiv 1908.04319, token level;
    github.com/facebookresearch/unlikelihood_training.
    """

    title = "unlikelihood"
    looks_back = True
    alpha: float = 1.0

    def check_parameters(self) -> None:
        self.require(self.alpha >= 0, "alpha", "0 or more")

    def losses(self, position_logits: PositionLogits) -> Tensor:
        penalties = -(1 - position_logits.earlier_probabilities).clamp(min=MIN_COMPLEMENT).log()
        penalty = penalties.masked_fill(position_logits.earlier.is_label, 0).sum(1)
        return self.alpha * penalty - position_logits.log_p
