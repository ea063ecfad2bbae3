"""Implements dynamic fine-tuning (DFT): MLE weighted by each label's probability."""

from dataclasses import dataclass

from torch import Tensor

from smile.alternatives.interface import WeightedMle


@dataclass(frozen=True)
class Dft(WeightedMle):
    """The loss is -p log p, where p is the label's probability and the weight p is detached.

    Source: arXiv 2508.05629, github.com/yongliang-wu/DFT.
    """

    title = "DFT"

    def weight(self, log_p: Tensor) -> Tensor:
        return log_p.exp()
