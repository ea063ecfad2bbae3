"""`Card`, the argument of the checks in tests/gpu: device, sizes, a folder, and their notes."""

from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass(eq=False)
class Card:
    """The device of a check: a GPU, or the CPU in a rehearsal.

    tiny: whether to use the sizes of a rehearsal. folder: where checks may write. notes: lines that
    a check reports in addition to its success.
    """

    device: torch.device
    tiny: bool
    folder: Path
    notes: list[str] = field(default_factory=list)

    @classmethod
    def here(cls, tiny: bool, folder: Path) -> "Card":
        """The CPU in a rehearsal, else the first GPU."""
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
