"""TaiLr: unlikely tokens have lower weights, because the reference may be wrong there."""

from dataclasses import dataclass

import torch
from torch import Tensor

from smile.alternatives.interface import WeightedMle


@dataclass(frozen=True)
class TaiLr(WeightedMle):
    """-w log p, where w = p / (gamma + (1 - gamma) p) is detached and at least `min_weight`.

    gamma 0 is MLE. gamma 1 with min_weight 0 is DFT. Source: arXiv 2302.13344, thu-coai/TaiLr.
    """

    title = "TaiLr"
    gamma: float = 0.5
    min_weight: float = 0.2

    def check(self) -> None:
        self.require(0 <= self.gamma <= 1, "gamma", "from 0 to 1")
        self.require(0 <= self.min_weight <= 1, "min_weight", "from 0 to 1")

    def weight(self, log_p: Tensor) -> Tensor:
        # Numerator and denominator are divided by p: if p underflows, w would be 0 / 0.
        inverse_p = (-log_p).exp().clamp(max=torch.finfo(log_p.dtype).max)
        return (1 / (self.gamma * inverse_p + 1 - self.gamma)).clamp(self.min_weight, 1)
