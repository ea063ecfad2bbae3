"""Detects a loss or gradient that is not finite, and makes the error that ends the run."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import torch

from captioning.config import Config
from captioning.runtime import distributed
from captioning.runtime.errors import UserError

# The lowest loss scale. A gradient that overflows at this scale is an error.
MIN_SCALE = 1.0
MAX_SHOWN = 8  # the most image ids and ranks in a message


class NotFiniteError(Exception):
    """The "reward", "loss" or "gradient" is not finite. The weights have not changed."""


class BatchReport(NamedTuple):
    """What the error reports of a batch. parts: the loss and its parts by name."""

    image_ids: list
    parts: Mapping[str, torch.Tensor]

    def is_finite(self) -> bool:
        return all(math.isfinite(value.item()) for value in self.parts.values())


def nonfinite_part(
    batches: Sequence[Mapping[str, float]], norm: float, scaler: torch.amp.GradScaler
) -> Optional[str]:
    """Return which of "reward", "loss" and "gradient" is not finite. None if the step may be taken.

    batches: the sums of each batch over all ranks. norm: the gradient's norm. With float16, the
    scaler skips a step whose gradient overflows, and lowers the loss scale. Only at the lowest
    scale is the overflow an error.
    """
    if not all(math.isfinite(value) for sums in batches for value in sums.values()):
        rewards = [sums.get("reward", 0.0) for sums in batches]
        return "loss" if all(map(math.isfinite, rewards)) else "reward"
    if math.isfinite(norm) or (scaler.is_enabled() and scaler.get_scale() > MIN_SCALE):
        return None
    return "gradient"


def nonfinite_error(
    part: str, step: int, batches: Sequence[BatchReport], config: Config, repeat: str
) -> UserError:
    """Make the error that ends the run. All ranks call this together and get the same error.

    part: from `nonfinite_part`. step: counted from 1. batches: reports of this rank. repeat: how to
    repeat the step.
    """
    reports = [(batch.image_ids[:MAX_SHOWN], batch.is_finite()) for batch in batches]
    images = distributed.broadcast_from_main(_list_images(distributed.gather_on_main(reports)))
    advice = f"lower init_lr, set clip_grad_norm, or use another precision than {config.precision}"
    if part == "reward":
        advice = f"remove a term from the key reward, which is {config.reward}"
    return UserError(f"the {part} is not finite at step {step} ({images}); {advice}; {repeat}")


def _list_images(ranks: Optional[Sequence[Sequence[tuple[list, bool]]]]) -> Optional[str]:
    """List the images of the batches that are not finite. If all are finite, list all images."""
    if ranks is None:
        return None
    reports = [(rank, *batch) for rank, batches in enumerate(ranks) for batch in batches]
    failed = [report for report in reports if not report[-1]] or reports
    return "; ".join(f"rank {rank} had images {ids}" for rank, ids, _ in failed[:MAX_SHOWN])
