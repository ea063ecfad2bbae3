"""Computes the alternatives of a mixture in the fused linear loss, for a chunk of positions.

Losses of likelihoods share MLE's softmax: their gradient is a multiple of the softmax plus the
gradients of a few tokens. Losses of logits get a copy of the chunk's logits, and autograd computes
their gradient.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from smile.alternatives.interface import Likelihoods, earlier_words
from smile.head import recorded
from smile.mixture import Mixture

LossesAndGradients = tuple[dict[str, Tensor], list[Optional[Tensor]]]


class Earlier(NamedTuple):
    """The tokens in the captions of R positions, each (R, L).

    words: the tokens. is_earlier: whether a token comes before the position. is_label: whether it
    is the position's label.
    """

    words: Tensor
    is_earlier: Tensor
    is_label: Tensor


class Alternatives:
    """The alternatives of a mixture. differentiate: whether gradients are wanted."""

    def __init__(self, mixture: Mixture, differentiate: bool):
        self.weights, self.ignore_index = mixture.weights, mixture.ignore_index
        self.differentiate = differentiate
        losses = mixture.alternatives()
        self.likelihoods = {k: v for k, v in losses.items() if not v.reads_logits}
        self.logits = {k: v for k, v in losses.items() if v.reads_logits}

    def earlier(self, labels: Tensor, chosen: Tensor) -> Optional[Earlier]:
        """The tokens in the captions of the positions `chosen` (M,). None if no loss needs them.

        labels: (C, L). chosen: indices of the flattened labels.
        """
        if not any(loss.looks_back for loss in self.likelihoods.values()):
            return None
        words, *which = earlier_words(labels, self.ignore_index)
        caption = chosen.div(labels.size(1), rounding_mode="floor")
        return Earlier(words[caption], *(x.flatten(0, 1)[chosen] for x in which))

    def of_logits(self, logits: Tensor, label: Tensor, scale: Tensor) -> LossesAndGradients:
        """Losses (R,) by name, and a list with the gradient of logits (R, V) or None.

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
    ) -> LossesAndGradients:
        """Losses (R,) by name, and the gradients of the tensors in `known`, each may be None.

        known: the logsumexp of all logits (R,), the label's logit (R,) and, if a loss looks back,
        the logits (R, L) of the caption's tokens.
        """
        losses, sums = {}, [None] * len(known)
        known = [x.detach().clone().requires_grad_(self.differentiate) for x in known]
        for name, loss in self.likelihoods.items():
            with recorded():
                losses[name] = loss.losses(Likelihoods(*known, *(earlier or ())[1:]))
            sums = self._accumulate(losses, name, known, scale, sums)
        return losses, sums

    def _accumulate(self, losses: dict[str, Tensor], name: str, inputs, scale, sums) -> list:
        """Add the gradients of the inputs to `sums`, and detach the losses."""
        attached, losses[name] = losses[name], losses[name].detach()
        if not self.differentiate:
            return sums
        d_losses = scale * self.weights[name]
        gradients = torch.autograd.grad(attached, inputs, d_losses, allow_unused=True)
        pairs = zip(sums, gradients)
        return [a if b is None else b if a is None else a + b for a, b in pairs]
