"""Implements selective EOS supervision: EOS gets no gradient where the caption goes on."""

import math
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from smile.alternatives.interface import LogitLoss


@dataclass(frozen=True)
class SelectiveEos(LogitLoss):
    """MLE with a softmax that includes EOS only where EOS is the label.

    eos_token_id: if None, captioners set it to their tokenizer's end token by
    `Objective.with_tokens`. Source: arXiv 2402.14545, github.com/yuezih/less-is-more.
    """

    title = "selective EOS"
    eos_token_id: Optional[int] = None

    def check_parameters(self) -> None:
        eos = self.eos_token_id
        is_valid = eos is None or (isinstance(eos, int) and not isinstance(eos, bool) and eos >= 0)
        self.require(is_valid, "eos_token_id", "an id, a whole number from 0")

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.eos_token_id is None or self.eos_token_id >= logits.size(1):
            raise ValueError(
                f"selective_eos: eos_token_id is {self.eos_token_id}; give the id of the end token,"
                f" below {logits.size(1)}"
            )
        eos_logit = logits[:, self.eos_token_id].where(labels == self.eos_token_id, -math.inf)
        column = labels.new_tensor([self.eos_token_id])
        logits = logits.index_copy(1, column, eos_logit.unsqueeze(1))
        # Liger replaces F.cross_entropy by a kernel that overwrites the logits, so that ATen's
        # operator is called instead.
        return torch.ops.aten.cross_entropy_loss(logits, labels, reduction=0)
