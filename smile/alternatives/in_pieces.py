"""The alternatives of a mixture in the fused linear loss, a chunk of the positions at a time.

Losses of likelihoods share MLE's softmax: their gradient is a multiple of it plus the gradients of
a few tokens. Losses of logits get a copy of the chunk's logits, which autograd differentiates.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from smile.alternatives.interface import Likelihoods, earlier_words
from smile.head import recorded
from smile.mixture import Mixture

Found = tuple[dict[str, Tensor], list[Optional[Tensor]]]


class Earlier(NamedTuple):
    """The tokens (R, L) of R positions' captions; which of them come before, and are the label."""

    words: Tensor
    is_earlier: Tensor
    is_label: Tensor


class Alternatives:
    """The alternatives of a mixture, in all chunks. differentiate: whether gradients are wanted."""

    def __init__(self, mixture: Mixture, differentiate: bool):
        self.weights, self.ignore_index = mixture.weights, mixture.ignore_index
        self.differentiate = differentiate
        found = mixture.alternatives()
        self.likelihoods = {k: v for k, v in found.items() if not v.reads_logits}
        self.logits = {k: v for k, v in found.items() if v.reads_logits}

    def earlier(self, labels: Tensor, chosen: Tensor) -> Optional[Earlier]:
        """For positions `chosen` (M,) of flattened labels (C, L); None where nothing looks back."""
        if not any(loss.looks_back for loss in self.likelihoods.values()):
            return None
        words, *which = earlier_words(labels, self.ignore_index)
        caption = chosen.div(labels.size(1), rounding_mode="floor")
        return Earlier(words[caption], *(x.flatten(0, 1)[chosen] for x in which))

    def of_logits(self, logits: Tensor, label: Tensor, scale: Tensor) -> Found:
        """Losses (R,) by name, and the gradient of logits (R, V), if there is one.

        label: (R,). scale: (R,), the gradient of a loss of weight 1.
        """
        losses, sums = {}, [None]
        for name, loss in self.logits.items():
            copy = logits.clone().requires_grad_(self.differentiate)
            with recorded():
                losses[name] = loss.losses(copy, label)
            sums = self._accumulate(losses, name, [copy], scale, sums)
        return losses, sums

    def of_likelihoods(
        self, known: list[Tensor], earlier: Optional[Earlier], scale: Tensor
    ) -> Found:
        """Losses (R,) by name, and the gradients of `known`, if there are any.

        known: the logsumexp of all logits (R,), the label's logit (R,), and, where some losses look
        back, the logits (R, L) of the caption's tokens.
        """
        losses, sums = {}, [None] * len(known)
        known = [x.detach().clone().requires_grad_(self.differentiate) for x in known]
        for name, loss in self.likelihoods.items():
            with recorded():
                losses[name] = loss.losses(Likelihoods(*known, *(earlier or ())[1:]))
            sums = self._accumulate(losses, name, known, scale, sums)
        return losses, sums

    def _accumulate(self, losses: dict[str, Tensor], name: str, inputs, scale, sums) -> list:
        """`sums` with the gradients of the inputs added; detaches the losses."""
        found, losses[name] = losses[name], losses[name].detach()
        if not self.differentiate:
            return sums
        d_losses = scale * self.weights[name]
        gradients = torch.autograd.grad(found, inputs, d_losses, allow_unused=True)
        pairs = zip(sums, gradients)
        return [a if b is None else b if a is None else a + b for a, b in pairs]
