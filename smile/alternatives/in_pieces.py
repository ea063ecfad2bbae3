"""The alternatives of a mixture in the fused linear loss, a chunk of the positions at a time.

Losses of likelihoods share MLE's softmax: their gradient is a multiple of it plus the gradients of
a few tokens. Losses of logits get a copy of the chunk's logits, which autograd differentiates.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from smile.alternatives.interface import Likelihoods, OfLikelihoods, OfLogits
from smile.alternatives.on_logits import earlier_words
from smile.head import Head, recorded
from smile.mixture import Mixture


class Earlier(NamedTuple):
    """The tokens (R, L) of R positions' captions; which of them come before, and are the label."""

    words: Tensor
    is_earlier: Tensor
    is_label: Tensor


class Alternatives:
    """The alternatives of a mixture, for all chunks."""

    def __init__(self, mixture: Mixture):
        self.weights, self.ignore_index = mixture.weights, mixture.ignore_index
        found = mixture.alternatives()
        self.names = set(found)
        self.of_likelihoods = {k: v for k, v in found.items() if isinstance(v, OfLikelihoods)}
        self.of_logits = {k: v for k, v in found.items() if isinstance(v, OfLogits)}
        self.look_back = any(loss.looks_back for loss in self.of_likelihoods.values())

    def earlier(self, labels: Tensor, chosen: Tensor) -> Optional[Earlier]:
        """For positions `chosen` (M,) of flattened labels (C, L); None where nothing looks back."""
        if not self.look_back:
            return None
        words, *which = earlier_words(labels, self.ignore_index)
        caption = chosen.div(labels.size(1), rounding_mode="floor")
        return Earlier(words[caption], *(x.flatten(0, 1)[chosen] for x in which))


class Piece:
    """The losses of R positions, by name, `losses`, and their part of the logits' gradient.

    logits: (R, V), before a softmax overwrites them. label, scale: (R, 1), the latter the gradient
    of a loss of weight 1.
    """

    def __init__(
        self,
        alternatives: Alternatives,
        head: Head,
        logits: Tensor,
        label: Tensor,
        scale: Tensor,
        earlier: Optional[Earlier],
    ):
        self.alternatives, self.head = alternatives, head
        self.label, self.scale, self.earlier = label, scale.squeeze(1), earlier
        self.losses: dict[str, Tensor] = {}
        self.d_words: Optional[list[Tensor]] = None
        self.d_logits: Optional[Tensor] = None
        self.picked = head.pick(logits, earlier.words) if earlier else None
        for name, loss in alternatives.of_logits.items():
            with recorded():
                copy = logits.clone().requires_grad_(head.differentiate)
                self.losses[name] = loss.losses(copy, label.squeeze(1))
            (gradient,) = self._gradients(name, [copy])
            if gradient is not None:
                self.d_logits = gradient if self.d_logits is None else self.d_logits + gradient

    def add_of_likelihoods(self, total: Tensor, target: Tensor) -> None:
        """total, target: (R, 1), the logsumexp of all logits and the label's."""
        if not self.alternatives.of_likelihoods:
            return
        known = [total.squeeze(1), target.squeeze(1)]
        if self.earlier:
            known.append(self.picked)
        known = [x.detach().clone().requires_grad_(self.head.differentiate) for x in known]
        for name, loss in self.alternatives.of_likelihoods.items():
            with recorded():
                self.losses[name] = loss.losses(Likelihoods(*known, *(self.earlier or ())[1:]))
            gradients = self._gradients(name, known)
            sums = self.d_words or [torch.zeros_like(x) for x in known]
            self.d_words = [a if b is None else a + b for a, b in zip(sums, gradients)]

    def share_of_softmax(self, share: Tensor) -> Tensor:
        """The softmax's factor (R, 1) in the logits' gradient, with the alternatives' part."""
        return share if self.d_words is None else share + self.d_words[0].unsqueeze(1)

    def add_gradients(self, d_logits: Tensor) -> None:
        """Add the alternatives' gradients, except the softmax's, to `d_logits` (R, V)."""
        if self.d_words is not None:
            _, d_label, *d_earlier = self.d_words
            self.head.add_(d_logits, self.label, d_label.unsqueeze(1))
            for d_words in d_earlier:
                self.head.add_(d_logits, self.earlier.words, d_words)
        if self.d_logits is not None:
            d_logits += self.d_logits

    def _gradients(self, name: str, inputs: list[Tensor]) -> tuple[Optional[Tensor], ...]:
        losses = self.losses[name]
        self.losses[name] = losses.detach()
        if not self.head.differentiate:
            return (None,) * len(inputs)
        d_losses = self.scale * self.alternatives.weights[name]
        return torch.autograd.grad(losses, inputs, d_losses, allow_unused=True)
