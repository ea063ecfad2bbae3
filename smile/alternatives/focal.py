"""Implements the focal loss: MLE with lower weights for labels that are already likely."""

from dataclasses import dataclass

import torch
from torch import Tensor

from smile.alternatives.interface import WeightedMle


@dataclass(frozen=True)
class Focal(WeightedMle):
    """The loss is -w log p with the detached weight w = (1 - p)^gamma.

    p is the label's probability. gamma 0 is MLE. Source: arXiv 1708.02002, for images.
    github.com/vyraun/long-tailed applies the focal loss to text and detaches the weight.
    """

    title = "focal"
    gamma: float = 2.0

    def check_parameters(self) -> None:
        self.require(self.gamma >= 0, "gamma", "0 or more")

    def weight(self, log_p: Tensor) -> Tensor:
        return (-torch.expm1(log_p)).pow(self.gamma)
