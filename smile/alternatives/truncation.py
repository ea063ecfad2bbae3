"""Loss truncation: drops the captions with the highest loss, because they may be wrong."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

from smile.alternatives.interface import TokenLoss
from smile.captions import numbered
from smile.labels import count


@dataclass(frozen=True)
class Truncation(TokenLoss):
    """MLE's mean over the tokens of a caption, averaged over captions. A dropped caption counts 0.

    Training drops a caption if its mean is at or above the quantile 1 - `drop` of the means of the
    last `window` captions. Nothing is dropped until the window is full. Tokens are weighted so that
    the mean over tokens equals this mean over captions. Source: arXiv 2004.14589,
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
        segments: Optional[Tensor],
        weights: Optional[Tensor],
        ignore_index: int,
        means: Optional["LastMeans"],
    ) -> Tensor:
        """The factor of each token's loss, (B, N).

        losses: MLE's, (B, N). labels, segments, weights: (B, N). means: the means of earlier
        captions, to which this method adds the batch's; None outside of training.
        """
        caption, number = numbered(labels, segments)
        caption, losses = caption.flatten(), losses.detach()
        token_weights = (labels != ignore_index) if weights is None else weights
        token_weights = token_weights.to(losses.dtype)

        def by_caption(values: Tensor) -> Tensor:
            return losses.new_zeros(number).index_add(0, caption, values.flatten())

        tokens = by_caption(token_weights)
        kept = has_labels = tokens > 0
        batch_means = by_caption(losses * token_weights) / tokens.where(has_labels, 1)
        if means is not None:
            if means.seen.device != losses.device:
                means.to(losses.device)  # the objective is not part of a model
            kept = has_labels & (batch_means.float() < means.limit(self.drop))
            means.add(batch_means, has_labels)
        share = kept / (tokens * has_labels.sum()).where(has_labels, 1)
        return share[caption].view_as(losses) * count(labels, weights, ignore_index)

    def last_means(self) -> "LastMeans":
        return LastMeans(self.window)


class LastMeans(nn.Module):
    """A ring buffer of the mean losses of the last `size` captions.

    float32, because MPS has no float64.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        # Means of captions without labels are written to the last element.
        self.register_buffer("means", torch.zeros(size + 1), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def limit(self, drop: float) -> Tensor:
        """The quantile 1 - `drop` of the means. Infinite until the buffer is full."""
        position = (1 - drop) * (self.size - 1)
        below = int(position)  # torch.quantile would round the position to float32
        means = self.means[:-1].sort().values
        quantile = means[below].lerp(means[min(below + 1, self.size - 1)], position - below)
        return quantile.where(self.seen >= self.size, math.inf)

    def add(self, means: Tensor, has_labels: Tensor) -> None:
        """Add a batch's means (C,), except of captions without labels. has_labels: bool (C,)."""
        # If there are more than `size` of them, only the last ones.
        added = has_labels & (has_labels.flip(0).cumsum(0).flip(0) <= self.size)
        position = (self.seen + added.cumsum(0) - 1) % self.size
        self.means[position.where(added, self.size)] = means.to(self.means.dtype)
        self.seen += added.sum()

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"means": self.means[:-1].clone(), "seen": self.seen.clone()}

    def restore(self, state: Any) -> None:
        """Load a state. Raises ValueError for a state of another size."""
        fits = isinstance(state, dict) and state.keys() == {"means", "seen"}
        if not fits or state["means"].shape != (self.size,):
            raise ValueError(f"truncation: the checkpoint has no window of {self.size} captions")
        self.means[:-1].copy_(state["means"])
        self.seen.copy_(state["seen"])
