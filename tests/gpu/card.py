"""What the checks on a GPU are given."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

REHEARSAL = "GPU_REHEARSAL" in os.environ  # in tiny sizes, on the CPU


@dataclass(frozen=True)
class Card:
    """The device of the checks. folder: for their files. tiny: whether this is a rehearsal."""

    folder: Path
    tiny: bool = REHEARSAL

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.tiny else "cuda:0")

    @property
    def on_gpu(self) -> bool:
        return not self.tiny


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |actual - expected| / |expected| with Euclidean norms, in float64.

    If a value is nan, the result is nan.
    """
    actual = actual.detach().double()
    expected = expected.detach().to(actual.device, torch.float64)
    return float((actual - expected).norm() / expected.norm())
