"""Full and read-only disks, which are mounted for the test."""

import contextlib
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from tests.programs import one_error_line, unchanged
from tests.runs import Run, difference, saved_step, write_config

STEPS = 8
MOST_SAVED = "most steps saved on a disk that got full"


def why_unmountable() -> Optional[str]:
    """Return why nothing can be mounted here; None if disks can be mounted."""
    if os.geteuid() != 0:
        return "only root can mount a disk of memory"
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    return None if probe.returncode == 0 else "mounting is not allowed here"


class Disk:
    """A disk of memory, on which runs of an epoch's steps are trained. Raises AssertionError.

    counts: of events
    """

    def __init__(self, folder: Path, settings: str = ""):
        """settings: further lines of the configuration."""
        folder.mkdir()
        self.place, self.counts, self.config = folder / "disk", Counter(), write_config(folder)
        self.config.write_text(self.config.read_text() + settings)
        self.whole, self.run = folder / "whole", self.place / "run"
        self.train(folder=self.whole)

    @contextlib.contextmanager
    def mounted(self, size: int) -> Iterator[None]:
        """Mount the disk, of so many bytes, for the block."""
        self.place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self.place], check=True)
        self.change(f"size={size}")
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", self.place], check=True)
            self.place.rmdir()

    def change(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", self.place], check=True)

    def train(self, *arguments: str, folder: Optional[Path] = None, reason: str = "") -> str:
        """Train, and return what was printed. Without a reason for an error, the run has to end."""
        run = Run(
            self.config, folder or self.run, *arguments, output=self.whole.with_suffix(".out")
        )
        codes = run.wait()
        if codes == [2] and reason:
            one_error_line(run.said(), reason)
            self.counts[f"{reason}, told in one line with exit code 2"] += 1
        else:
            assert codes == [0], run.said()
        return run.said()

    def finish(self) -> str:
        """Continue the run to its end. Return what it printed."""
        said = self.train()
        found = difference(self.whole, self.run)
        assert found is None, f"the run that went on differs in {found}"
        self.counts["runs that ended bit-identical to the undisturbed one"] += 1
        return said


def check_full_disks(folder: Path, tries: int) -> Counter:
    """Runs on disks of many sizes: a full disk is one line, and the run resumes with more room."""
    disk = Disk(folder)
    needed = sum(path.stat().st_size for path in disk.whole.rglob("*") if path.is_file())
    for number in range(tries):
        with disk.mounted(int(needed * (0.05 + number / tries))):
            disk.train(reason="No space left on device")
            before = saved_step(disk.run, STEPS)
            disk.counts[MOST_SAVED] = max(disk.counts[MOST_SAVED], before)
            disk.change("size=64m")
            assert "weights are random" not in disk.finish() or not before, "it began anew"
    return disk.counts


def check_read_only_disks(folder: Path) -> Counter:
    """A run on a disk that becomes read-only: one line, and no file changes."""
    disk = Disk(folder, "lr_schedule: exponential\n")  # a run of one epoch may go on to more
    with disk.mounted(64 << 20):
        for is_begun in (False, True):
            if is_begun:
                disk.train("max_epoch=1")
                (disk.run / ".left.1.staged").write_text("by a kill")
            disk.change("ro")
            with unchanged(disk.place):
                disk.train(reason="Read-only file system")
            disk.change("rw")
        disk.finish()
    assert sum(disk.counts.values()) == 3
    return disk.counts
