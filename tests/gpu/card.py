"""The device of the checks, and how far a result is from the one that is expected."""

import os

import torch

REHEARSAL = "GPU_REHEARSAL" in os.environ  # in tiny sizes, on the CPU
DEVICE = torch.device("cpu" if REHEARSAL else "cuda:0")


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |actual - expected| / |expected| with Euclidean norms, in float64.

    If a value is nan, the result is nan.
    """
    actual = actual.detach().double()
    expected = expected.detach().to(actual.device, torch.float64)
    return float((actual - expected).norm() / expected.norm())
