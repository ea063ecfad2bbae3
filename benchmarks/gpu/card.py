"""What checks and measurements are given: the device, its sizes, a folder, and the time left."""

import functools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(eq=False)
class Card:
    """A GPU, or in a rehearsal the CPU.

    tiny: whether sizes are those of a rehearsal. folder: to write to. ends: on the clock
    `time.monotonic`. said: what checks have found out besides that they passed.
    """

    device: torch.device
    tiny: bool
    folder: Path
    ends: float = float("inf")
    said: list[str] = field(default_factory=list)

    @classmethod
    def here(cls, tiny: bool, folder: Path, ends: float = float("inf")) -> "Card":
        """The CPU of a rehearsal, else the first GPU."""
        return cls(torch.device("cpu" if tiny else "cuda:0"), tiny, folder, ends)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    def say(self, line: str) -> None:
        self.said.append(line)

    @functools.cached_property
    def captioner(self) -> Any:
        """BLIP-base in evaluation mode, on the device, with weights that are always the same."""
        from benchmarks.captioners import our_captioner

        return our_captioner(self.tiny).eval().to(self.device)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|, in float64; NaN stays NaN."""
    found = found.detach().double()
    expected = expected.detach().to(found.device, torch.float64)
    return float((found - expected).norm() / expected.norm())
