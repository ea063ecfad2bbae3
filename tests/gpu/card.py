"""What the checks on a GPU are given."""

import os
from pathlib import Path
from typing import NamedTuple

import torch

REHEARSAL = "GPU_REHEARSAL" in os.environ  # in tiny sizes, on the CPU


class Card(NamedTuple):
    """The device of the checks. folder: for their files. tiny: whether this is a rehearsal."""

    folder: Path
    tiny: bool = REHEARSAL
    on_gpu: bool = not REHEARSAL
    device: torch.device = torch.device("cpu" if REHEARSAL else "cuda:0")


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |actual - expected| / |expected| with Euclidean norms, in float64.

    If a value is nan, the result is nan.
    """
    actual = actual.detach().double()
    expected = expected.detach().to(actual.device, torch.float64)
    return float((actual - expected).norm() / expected.norm())
