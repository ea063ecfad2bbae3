"""Dynamic fine-tuning: each token is weighted by its probability."""

from dataclasses import dataclass

from torch import Tensor

from smile.alternatives.interface import WeightedMle


@dataclass(frozen=True)
class Dft(WeightedMle):
    """-p log p, where p is the label's probability and the weight p is detached.

    Source: arXiv 2508.05629, yongliang-wu/DFT.
    """

    title = "DFT"

    def weight(self, log_p: Tensor) -> Tensor:
        return log_p.exp()
