"""The `card` that checks of tests/gpu receive: the device, its sizes, a folder, and their notes."""

from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass(eq=False)
class Card:
    """A GPU, or in a rehearsal the CPU.

    tiny: whether sizes are those of a rehearsal. folder: to write to. notes: what checks report
    besides that they passed.
    """

    device: torch.device
    tiny: bool
    folder: Path
    notes: list[str] = field(default_factory=list)

    @classmethod
    def here(cls, tiny: bool, folder: Path) -> "Card":
        """The CPU of a rehearsal, else the first GPU."""
        return cls(torch.device("cpu" if tiny else "cuda:0"), tiny, folder)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def note(self, line: str) -> None:
        self.notes.append(line)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|, in float64; NaN stays NaN."""
    found = found.detach().double()
    expected = expected.detach().to(found.device, torch.float64)
    return float((found - expected).norm() / expected.norm())
