"""Loss truncation: captions of the highest loss, which may be wrong, are dropped."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

from smile.alternatives.interface import TokenLoss
from smile.captions import numbered
from smile.labels import count, reduce, weigh
from smile.mixture import Mixture
from smile.mle import mle_loss
from smile.operator import mixture_from_hidden


@dataclass(frozen=True)
class Truncation(TokenLoss):
    """The mean over captions of MLE's mean over their tokens, 0 for a dropped caption.

    Training drops captions whose mean is at or above the quantile 1 - `drop` of the last `window`
    captions' means, once the window is full. Tokens are weighted so
    that the mean over tokens is this mean over captions. Source: arXiv 2004.14589,
    ddkang/loss_dropper.
    """

    title = "loss truncation"
    drop: float = 0.4
    window: int = 10_000

    def check(self) -> None:
        self.require(0 <= self.drop < 1, "drop", "from 0, below 1")
        self.require(1 <= self.window <= 10_000_000, "window", "from 1 to 10,000,000")

    def factors(
        self,
        losses: Tensor,
        labels: Tensor,
        captions: tuple[Tensor, int],
        weights: Optional[Tensor],
        ignore_index: int,
        means: Optional["LastMeans"],
    ) -> Tensor:
        """The factor of each token's loss, (B, N).

        losses, labels, weights: (B, N). captions: the number of each position's caption, (B, N),
        and how many there are. means: of earlier captions, which these are added to; None outside
        of training.
        """
        numbers, number = captions
        numbers = numbers.flatten()
        own = (labels != ignore_index).to(losses.dtype) if weights is None else weights
        own = own.to(losses.dtype)

        def by_caption(values: Tensor) -> Tensor:
            return losses.new_zeros(number).index_add(0, numbers, values.flatten())

        tokens = by_caption(own)
        there = tokens > 0
        each = by_caption(losses * own) / tokens.where(there, 1)
        if means is not None and means.seen.device != losses.device:
            means.to(losses.device)  # of an objective that is not part of a model
        kept = there if means is None else there & (each.float() < means.limit(self.drop))
        if means is not None:
            means.add(each, there)
        share = kept / (tokens * there.sum()).where(there, 1)
        return share[numbers].view_as(losses) * count(labels, weights, ignore_index)

    def loss(
        self,
        means: Optional["LastMeans"],
        logits: Tensor,
        labels: Tensor,
        ignore_index: int,
        reduction: str,
        segments: Optional[Tensor],
        weights: Optional[Tensor],
    ) -> Tensor:
        """The reduced losses of logits (B, N, V); the rest is that of `smile_loss`."""
        labels, weights = weigh(labels, weights, ignore_index)
        losses = mle_loss(logits, labels, ignore_index, reduction="none")
        how = (numbered(labels, segments), weights, ignore_index, means)
        factors = self.factors(losses.detach(), labels, *how)
        return reduce(losses * factors, labels, ignore_index, reduction, weights)

    def from_hidden(
        self,
        means: Optional["LastMeans"],
        inputs: tuple[Tensor, Tensor, Optional[Tensor]],
        batch: tuple[Tensor, Optional[Tensor], Optional[Tensor], Optional[Tensor]],
        mixture: Mixture,
        reduction: str,
        *how,
    ) -> tuple[Tensor, Tensor]:
        """`mixture_from_hidden` of a mixture in which truncation is one of the losses.

        inputs: hidden states, weight and bias. batch: labels, words, segments and weights. The
        first pass computes MLE's losses, the second the gradients of the captions that are kept.
        """
        labels, _, segments, weights = batch
        ignore = mixture.ignore_index
        mle = Mixture({"mle": 1.0}, 0.0, False, None, ignore)
        with torch.no_grad():
            losses, _ = mixture_from_hidden(*inputs, labels, None, None, None, mle, "none", *how)
        shares = self.factors(losses, labels, numbered(labels, segments), weights, ignore, means)
        if weights is not None:
            shares = shares * weights
        kept = labels.masked_fill(shares == 0, ignore)
        reduced = "sum" if reduction == "mean" else reduction
        part, _ = mixture_from_hidden(*inputs, kept, None, None, shares, mle, reduced, *how)
        if reduction == "mean":
            tokens = count(labels, weights, ignore)
            part = part / tokens.masked_fill(tokens == 0, 1)
        weight = mixture.weights["truncation"]
        names = list(mixture.weights)
        others = {name: each for name, each in mixture.weights.items() if name != "truncation"}
        loss, parts = weight * part, part.detach().unsqueeze(0)
        if others:
            mixture = mixture._replace(weights=others)
            of_others, theirs = mixture_from_hidden(*inputs, *batch, mixture, reduction, *how)
            loss = loss + of_others
            before, after = theirs.tensor_split([names.index("truncation")])
            parts = torch.cat([before, parts, after])
        return loss, parts

    def last_means(self) -> "LastMeans":
        return LastMeans(self.window)


class LastMeans(nn.Module):
    """A ring buffer of the last `size` captions' mean losses; float32, as MPS has no float64."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        # The last element takes means of captions without labels.
        self.register_buffer("means", torch.zeros(size + 1), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def limit(self, drop: float) -> Tensor:
        """Their quantile 1 - `drop`; infinite before there are `size`."""
        place = (1 - drop) * (self.size - 1)
        below = int(place)  # torch.quantile would round it to float32
        means = self.means[:-1].sort().values
        found = means[below].lerp(means[min(below + 1, self.size - 1)], place - below)
        return found.where(self.seen >= self.size, math.inf)

    def add(self, means: Tensor, there: Tensor) -> None:
        """Add a batch's means (C,), where they are `there`."""
        there = there & (there.flip(0).cumsum(0).flip(0) <= self.size)  # the last so many
        place = (self.seen + there.cumsum(0) - 1) % self.size
        self.means[place.where(there, self.size)] = means.to(self.means.dtype)
        self.seen += there.sum()

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"means": self.means[:-1].clone(), "seen": self.seen.clone()}

    def restore(self, state: Any) -> None:
        """Load a state. Raises ValueError for one of another size."""
        fits = isinstance(state, dict) and state.keys() == {"means", "seen"}
        if not fits or state["means"].shape != (self.size,):
            raise ValueError(f"truncation: the checkpoint has no window of {self.size} captions")
        self.means[:-1].copy_(state["means"])
        self.seen.copy_(state["seen"])
