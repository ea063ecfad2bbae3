"""A loss or a gradient that is not finite: how it is detected, and the error that ends the run."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import torch

from captioning.config import Config
from captioning.runtime import distributed
from captioning.runtime.errors import UserError

# Of the loss scale: a gradient that overflows without being scaled up is an error.
LEAST_SCALE = 1.0
SHOWN = 8  # image ids and ranks


class NotFiniteError(Exception):
    """The "reward", "loss" or "gradient" is not finite. The weights have not changed."""


class BatchReport(NamedTuple):
    """What the error needs to know of a batch. parts: the loss and its parts, scalars by name."""

    image_ids: list
    parts: Mapping[str, torch.Tensor]

    def is_finite(self) -> bool:
        return all(math.isfinite(value.item()) for value in self.parts.values())


def what_is_not_finite(
    batches: Sequence[Mapping[str, float]], norm: float, scaler: torch.amp.GradScaler
) -> Optional[str]:
    """ "reward", "loss" or "gradient" where a step must not be taken; None where it may be.

    batches: the sums of each batch over all ranks. norm: of the gradient. With float16 the scaler
    skips a step whose gradient overflows and lowers the scale, so that is no error unless the scale
    is at its lowest.
    """
    if not all(math.isfinite(value) for sums in batches for value in sums.values()):
        rewards = [sums.get("reward", 0.0) for sums in batches]
        return "loss" if all(map(math.isfinite, rewards)) else "reward"
    if math.isfinite(norm) or (scaler.is_enabled() and scaler.get_scale() > LEAST_SCALE):
        return None
    return "gradient"


def nonfinite_error(
    what: str, step: int, batches: Sequence[BatchReport], config: Config, repeat: str
) -> UserError:
    """The error that ends the run, the same on all ranks; all ranks call this together.

    step: from 1 on. batches: this rank's. repeat: how to repeat the step.
    """
    own = [(batch.image_ids[:SHOWN], batch.is_finite()) for batch in batches]
    images = distributed.broadcast_from_main(_images(distributed.gather_on_main(own)))
    advice = f"lower init_lr, set clip_grad_norm, or use another precision than {config.precision}"
    if what == "reward":
        advice = f"leave out a part of reward: {config.reward}"
    return UserError(f"the {what} is not finite at step {step} ({images}); {advice}; {repeat}")


def _images(ranks: Optional[Sequence[Sequence[tuple[list, bool]]]]) -> Optional[str]:
    """The images of the batches that are not finite; of all, where only the gradient is not."""
    if ranks is None:
        return None
    found = [(rank, *batch) for rank, batches in enumerate(ranks) for batch in batches]
    failed = [batch for batch in found if not batch[-1]] or found
    return "; ".join(f"rank {rank} had images {ids}" for rank, ids, _ in failed[:SHOWN])
