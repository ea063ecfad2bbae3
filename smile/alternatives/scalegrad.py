"""Implements ScaleGrad: MLE that favours tokens which are new to a caption.

The loss scales the probabilities of new tokens down, so that training raises them further.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from smile.alternatives.interface import LikelihoodLoss
from smile.position_logits import PositionLogits

EPSILON = 1e-8  # added to p' before the logarithm


@dataclass(frozen=True)
class ScaleGrad(LikelihoodLoss):
    """The loss is -log p' of the label. gamma 1 is MLE, except for EPSILON.

    To get p', the probabilities p of all tokens that are new to the caption are multiplied by
    gamma. Then all probabilities are divided by their new sum, which is gamma + (1 - gamma) * the
    sum of p over the caption's earlier tokens. Source: Lin, Han and Joty, "Straight to the
    Gradient", ICML 2021, github.com/shawnlimn/ScaleGrad.
    """

    title = "ScaleGrad"
    looks_back = True
    gamma: float = 0.2

    def check_parameters(self) -> None:
        self.require(0 < self.gamma <= 1, "gamma", "above 0, at most 1")

    def losses(self, position_logits: PositionLogits) -> Tensor:
        total = self.gamma + (1 - self.gamma) * position_logits.earlier_probabilities.sum(1)
        earlier = position_logits.earlier
        is_new = ~(earlier.is_label & earlier.is_earlier).any(1)
        log_p = position_logits.log_p + math.log(self.gamma) * is_new.to(total.dtype) - total.log()
        return -(log_p.exp() + EPSILON).log()
