"""Implements GEM: raises the label against a sharpened softmax, to preserve entropy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from smile.alternatives.interface import LogitLoss

KINDS = ("linear", "logsigmoid")
STEEPNESS = 0.01  # the factor in the sigmoid of "logsigmoid"


@dataclass(frozen=True)
class Gem(LogitLoss):
    """The loss is -sum over tokens v of q_v h_v (log p_y - log p_v), where y is the label.

    z are the logits, p = softmax(z) and q = softmax(z / beta). h: "linear" (h_v is 1) or
    "logsigmoid" (h_v is sigmoid(0.01 (z_v - z_y))). q and h_v are detached. The loss may be
    negative. Source: arXiv 2408.16673, github.com/liziniu/GEM.
    """

    title = "GEM"
    beta: float = 0.7
    h: str = "linear"

    def check_parameters(self) -> None:
        self.require(self.beta > 0, "beta", "above 0")
        self.require(self.h in KINDS, "h", f"one of {', '.join(KINDS)}")

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        label_logit = logits.gather(1, labels.unsqueeze(1))  # (R, 1)
        # log p_y - log p_v equals z_y - z_v.
        with torch.no_grad():
            token_weights = (logits / self.beta).softmax(1)
            if self.h == "logsigmoid":
                token_weights *= torch.sigmoid(STEEPNESS * (logits - label_logit))
        # A masked token has a weight of 0 and a logit of -inf. Their product would be NaN.
        return (token_weights * (logits - label_logit).masked_fill(token_weights == 0, 0)).sum(1)
