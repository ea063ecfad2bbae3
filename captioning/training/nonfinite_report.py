"""Detects a loss or gradient that is not finite, and raises the error that ends the run."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn, Optional

import torch

from captioning.config import Config
from captioning.runtime import distributed
from captioning.runtime.errors import UserError

# The lowest loss scale. A gradient that overflows at this scale is an error.
MIN_SCALE = 1.0
MAX_SHOWN = 8  # the most image ids and ranks in a message


class NotFiniteError(Exception):
    """Raised by a step that is not finite, before the weights change.

    Its text is "reward", "loss" or "gradient".
    """


class BatchReport(NamedTuple):
    """What an error message needs to know about a batch of this rank.

    parts: the loss as "loss", and the parts of the loss by name.
    """

    image_ids: list
    parts: Mapping[str, torch.Tensor]

    def is_finite(self) -> bool:
        return all(math.isfinite(value.item()) for value in self.parts.values())


class _RankReport(NamedTuple):
    """What rank 0 needs to know about a batch of any rank. image_ids: the first MAX_SHOWN."""

    rank: int
    image_ids: list
    is_finite: bool


def nonfinite_part(
    batches: Sequence[Mapping[str, float]], norm: float, scaler: torch.amp.GradScaler
) -> Optional[str]:
    """Return which of "reward", "loss" and "gradient" is not finite; None if there is no error.

    batches: for each batch {name: sum over all ranks}. norm: the gradient's norm. With float16, a
    gradient that overflows is no error as long as the loss scale is above MIN_SCALE: the scaler
    skips the step and lowers the loss scale.
    """
    if not all(math.isfinite(value) for sums in batches for value in sums.values()):
        rewards_are_finite = all(math.isfinite(sums.get("reward", 0.0)) for sums in batches)
        return "loss" if rewards_are_finite else "reward"
    if math.isfinite(norm) or (scaler.is_enabled() and scaler.get_scale() > MIN_SCALE):
        return None
    return "gradient"


def raise_nonfinite(
    part: str, step: int, batches: Sequence[BatchReport], config: Config, repeat: str
) -> NoReturn:
    """Raise the UserError that ends the run. All ranks call this and raise the same error.

    part: from `nonfinite_part`. step: the step's number in the run, from 1. batches: reports of
    this rank's batches. repeat: the end of the message, which says how to repeat the step.
    """
    gathered = distributed.gather_on_main(
        [
            _RankReport(distributed.rank(), batch.image_ids[:MAX_SHOWN], batch.is_finite())
            for batch in batches
        ]
    )

    def fail():
        reports = [report for of_rank in gathered for report in of_rank]
        # Name the images of the batches that are not finite. If every batch is finite, as when only
        # the gradient is not, name the images of all batches.
        failed = [report for report in reports if not report.is_finite] or reports
        images = "; ".join(f"rank {r.rank} had images {r.image_ids}" for r in failed[:MAX_SHOWN])
        advice = (
            f"lower init_lr, set clip_grad_norm, or use another precision than {config.precision}"
        )
        if part == "reward":
            advice = f"remove a term from the key reward, which is {config.reward}"
        raise UserError(f"the {part} is not finite at step {step} ({images}); {advice}; {repeat}")

    distributed.run_on_main(fail)
