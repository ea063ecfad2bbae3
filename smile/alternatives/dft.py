"""Dynamic fine-tuning: each token is weighted by its probability."""

from dataclasses import dataclass

from torch import Tensor

from smile.alternatives.interface import Weighed


@dataclass(frozen=True)
class Dft(Weighed):
    """-p log p of a label of probability p, the weight detached.

    Source: arXiv 2508.05629, yongliang-wu/DFT.
    """

    title = "DFT"

    def check(self) -> None:
        """It has no parameters."""

    def weight(self, log_p: Tensor) -> Tensor:
        return log_p.exp()
