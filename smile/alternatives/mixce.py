"""Implements MixCE: a mixture of forward cross-entropy and approximate reverse cross-entropy."""

from dataclasses import dataclass

from torch import Tensor

from smile.alternatives.interface import WeightedMle


@dataclass(frozen=True)
class MixCe(WeightedMle):
    """The loss is -w log p with the detached weight w = eta + (1 - eta) p.

    p is the label's probability. eta 1 is MLE, and eta 0 is DFT. Source: arXiv 2305.16958, with the
    approximation in github.com/bloomberg/mixce-acl2023.
    """

    title = "MixCE"
    eta: float = 0.5

    def check_parameters(self) -> None:
        self.require(0 <= self.eta <= 1, "eta", "from 0 to 1")

    def weight(self, log_p: Tensor) -> Tensor:
        return self.eta + (1 - self.eta) * log_p.exp()
