"""Focal loss: likely tokens have lower weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from smile.alternatives.interface import WeightedMle


@dataclass(frozen=True)
class Focal(WeightedMle):
    """-(1 - p)^gamma log p, where p is the label's probability and the weight is detached.

    gamma 0 is MLE. Source: arXiv 1708.02002, for images. vyraun/long-tailed applies it to text and
    detaches the weight.
    """

    title = "focal"
    gamma: float = 2.0

    def check(self) -> None:
        self.require(self.gamma >= 0, "gamma", "0 or more")

    def weight(self, log_p: Tensor) -> Tensor:
        return (-torch.expm1(log_p)).pow(self.gamma)
