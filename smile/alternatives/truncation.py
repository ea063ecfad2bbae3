"""Implements loss truncation: drops the captions with the highest loss, as they may be wrong."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

from smile.alternatives.interface import TokenLoss
from smile.captions import number_captions
from smile.labels import count_labels


@dataclass(frozen=True)
class Truncation(TokenLoss):
    """The loss is MLE averaged over each caption's tokens, then averaged over captions.

    Training drops a caption, which means that its loss counts as 0, if the mean of the caption's
    token losses is at or above a threshold. The threshold is the quantile 1 - `drop` of these means
    over the last `window` captions. Nothing is dropped until there are `window` means, or if `drop`
    is 0. Each token's loss gets a factor, such that the batch's mean over tokens equals the mean
    over captions. Source: arXiv 2004.14589, github.com/ddkang/loss_dropper.
    """

    title = "loss truncation"
    drop: float = 0.4
    window: int = 10_000

    def check_parameters(self) -> None:
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
        """Return the factor by which each token's loss is multiplied, (B, N).

        losses: MLE's, (B, N). labels, segments, weights: (B, N). means: the mean losses of earlier
        captions; this method adds the batch's mean losses to them. None outside of training, where
        no caption is dropped.
        """
        caption_index, caption_count = number_captions(labels, segments)
        caption_index = caption_index.flatten()
        losses = losses.detach()
        token_weights = (labels != ignore_index) if weights is None else weights
        token_weights = token_weights.to(losses.dtype)

        def sum_by_caption(values):
            return losses.new_zeros(caption_count).index_add(0, caption_index, values.flatten())

        caption_weights = sum_by_caption(token_weights)
        is_kept = has_labels = caption_weights > 0
        batch_means = sum_by_caption(losses * token_weights) / caption_weights.where(has_labels, 1)
        if means is not None:
            if means.seen.device != losses.device:
                # An objective that is not a submodule of the model does not move with the model.
                means.to(losses.device)
            is_kept = has_labels & (batch_means.float() < means.threshold(self.drop))
            means.add(batch_means, has_labels)
        caption_factors = is_kept / (caption_weights * has_labels.sum()).where(has_labels, 1)
        return caption_factors[caption_index].view_as(losses) * count_labels(
            labels, weights, ignore_index
        )

    def new_window(self) -> "LastMeans":
        """Return an empty window for `factors`."""
        return LastMeans(self.window)


class LastMeans(nn.Module):
    """A ring buffer of the mean losses of the last `size` captions.

    Means are float32, even if losses are float64, because MPS has no float64. `seen` is the number
    of captions that were ever added.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        # The last element receives the means that `add` leaves out, so that shapes are fixed.
        self.register_buffer("means", torch.zeros(size + 1), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def threshold(self, drop: float) -> Tensor:
        """Return the quantile 1 - `drop` of the means, or infinity to drop nothing.

        It is infinity if `drop` is 0, and until the buffer is full.
        """
        position = (1 - drop) * (self.size - 1)
        lower = int(position)  # torch.quantile would round the position to float32
        means = self.means[:-1].sort().values
        quantile = means[lower].lerp(means[min(lower + 1, self.size - 1)], position - lower)
        return quantile.where((self.seen >= self.size) & (drop > 0), math.inf)

    def add(self, means: Tensor, has_labels: Tensor) -> None:
        """Add a batch's means (C,), except of captions without labels. has_labels: bool (C,)."""
        # If a batch has more than `size` captions, only the last `size` are added.
        is_added = has_labels & (has_labels.flip(0).cumsum(0).flip(0) <= self.size)
        position = (self.seen + is_added.cumsum(0) - 1) % self.size
        self.means[position.where(is_added, self.size)] = means.to(self.means.dtype)
        self.seen += is_added.sum()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"means": self.means[:-1].clone(), "seen": self.seen.clone()}

    def restore(self, state: Any) -> None:
        """Load what `state` returned. Raises ValueError if the saved window has another size."""
        if state["means"].shape != (self.size,):
            raise ValueError(f"truncation: the checkpoint has no window of {self.size} captions")
        self.means[:-1].copy_(state["means"])
        self.seen.copy_(state["seen"])
