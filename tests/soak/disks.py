"""Full and read-only disks, which are mounted for the test."""

import contextlib
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from tests.programs import digests
from tests.runs import Run, difference, saved_step, write_config
from tests.soak.disturbed import BrokenPromise

STEPS = 8


def why_unmountable() -> Optional[str]:
    """Return why nothing can be mounted here; None if disks can be mounted."""
    if os.geteuid() != 0:
        return "only root can mount a disk of memory"
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    return None if probe.returncode == 0 else "mounting is not allowed here"


@contextlib.contextmanager
def mounted_disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of memory of `size` bytes at `folder`, for the block."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def check_full_disks(folder: Path, tries: int) -> Counter:
    """Runs on disks of many sizes: a full disk is one line, and the run resumes with more room."""
    counts: Counter[str] = Counter()
    config = write_config(folder)
    _run_undisturbed(config, folder)
    needed = sum(path.stat().st_size for path in (folder / "whole").rglob("*") if path.is_file())
    for number in range(tries):
        size = int(needed * (0.05 + number / tries))
        with mounted_disk(folder / "disk", size):
            _check_full_disk(_continue_run(config, folder), config, folder, counts)
    return counts


def _check_full_disk(codes: list[int], config: Path, folder: Path, counts: Counter) -> None:
    before = saved_step(folder / "disk" / "run", STEPS)
    if codes == [0]:
        counts["disks that were large enough"] += 1
    else:
        _check_refused(codes, folder, "No space left on device")
        counts["full disks, told in one line with exit code 2"] += 1
        most = "most steps saved on a disk that got full"
        counts[most] = max(counts[most], before)
    _mount("-o", "remount,size=64m", str(folder / "disk"))
    said = _finish_run(config, folder, counts)
    if before and "weights are random" in said:
        raise BrokenPromise("a run that had a checkpoint began anew")


def check_read_only_disks(folder: Path) -> Counter:
    """A run on a disk that becomes read-only: one line, and no file changes."""
    counts: Counter[str] = Counter()
    config = write_config(folder)
    with open(config, "a") as file:
        file.write("lr_schedule: exponential\n")  # which lets a run of one epoch go on to more
    _run_undisturbed(config, folder)
    place = folder / "disk"
    with mounted_disk(place, 64 << 20):
        for begun in (False, True):
            if begun:
                _check_success(_continue_run(config, folder, "max_epoch=1"), folder)
                (place / "run" / ".left.1.staged").write_text("by a kill")
            before = digests(place)
            _mount("-o", "remount,ro", str(place))
            _check_refused(_continue_run(config, folder), folder, "Read-only file system")
            if digests(place) != before:
                raise BrokenPromise("a read-only disk was changed")
            counts["read-only disks, told in one line with exit code 2"] += 1
            _mount("-o", "remount,rw", str(place))
        _finish_run(config, folder, counts)
    return counts


def _run_undisturbed(config: Path, folder: Path) -> None:
    """Train the run with which the others are compared."""
    _check_success(Run(config, folder / "whole", output=folder / "run.output").wait(), folder)


def _check_success(codes: list[int], folder: Path) -> None:
    if codes != [0]:
        raise BrokenPromise(f"exit code {codes}: {_output(folder)}")


def _check_refused(codes: list[int], folder: Path, reason: str) -> None:
    lines = [line for line in _output(folder).splitlines() if "error" in line.lower()]
    if codes != [2] or len(lines) != 1 or reason not in lines[0]:
        raise BrokenPromise(f"exit code {codes}: {_output(folder)}")


def _finish_run(config: Path, folder: Path, counts: Counter) -> str:
    """Continue the run to its end. Return what it printed."""
    _check_success(_continue_run(config, folder), folder)
    found = difference(folder / "whole", folder / "disk" / "run")
    if found:
        raise BrokenPromise(f"the run that went on differs in {found}")
    counts["runs that ended bit-identical to the undisturbed one"] += 1
    return _output(folder)


def _continue_run(config: Path, folder: Path, *arguments: str) -> list[int]:
    return Run(config, folder / "disk" / "run", *arguments, output=folder / "run.output").wait()


def _output(folder: Path) -> str:
    return (folder / "run.output").read_text()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
