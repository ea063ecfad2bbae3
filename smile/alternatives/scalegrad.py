"""ScaleGrad: scales down tokens that are new to a caption, so that training raises them."""

import math
from dataclasses import dataclass

from torch import Tensor

from smile.alternatives.interface import Likelihoods, OfLikelihoods

LEAST = 1e-8  # added to a probability


@dataclass(frozen=True)
class ScaleGrad(OfLikelihoods):
    """-log p' of the label. gamma 1 is MLE.

    p' is p with the probabilities of all tokens that are new to the caption multiplied by gamma,
    and then normalised. The normaliser is gamma + (1 - gamma) * sum of p over the caption's earlier
    tokens. Source: Lin, Han and Joty, "Straight to the Gradient", ICML 2021, shawnlimn/ScaleGrad.
    """

    title = "ScaleGrad"
    looks_back = True
    gamma: float = 0.2

    def check(self) -> None:
        self.require(0 < self.gamma <= 1, "gamma", "above 0, at most 1")

    def losses(self, words: Likelihoods) -> Tensor:
        total = self.gamma + (1 - self.gamma) * words.p_of_earlier.sum(1)
        new = ~(words.is_label & words.is_earlier).any(1)
        log_p = words.log_p + math.log(self.gamma) * new.to(total.dtype) - total.log()
        return -(log_p.exp() + LEAST).log()
