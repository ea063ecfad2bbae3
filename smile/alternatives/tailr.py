"""Implements TaiLr: MLE with lower weights for unlikely labels, because these may be wrong."""

from dataclasses import dataclass

import torch
from torch import Tensor

from smile.alternatives.interface import WeightedMle


@dataclass(frozen=True)
class TaiLr(WeightedMle):
    """The loss is -w log p with the detached weight w = p / (gamma + (1 - gamma) p).

    p is the label's probability. A weight below `min_weight` is raised to `min_weight`. gamma 0 is
    MLE. gamma 1 with min_weight 0 is DFT. Source: arXiv 2302.13344, github.com/thu-coai/TaiLr.
    """

    title = "TaiLr"
    gamma: float = 0.5
    min_weight: float = 0.2

    def check_parameters(self) -> None:
        self.require(0 <= self.gamma <= 1, "gamma", "from 0 to 1")
        self.require(0 <= self.min_weight <= 1, "min_weight", "from 0 to 1")

    def weight(self, log_p: Tensor) -> Tensor:
        # w is computed as 1 / (gamma / p + 1 - gamma), so that it is not 0 / 0 if p underflows.
        inverse_p = (-log_p).exp().clamp(max=torch.finfo(log_p.dtype).max)
        return (1 / (self.gamma * inverse_p + 1 - self.gamma)).clamp(self.min_weight, 1)
