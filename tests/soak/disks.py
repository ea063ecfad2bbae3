"""Full and read-only disks, which are mounted for the test."""

import contextlib
import hashlib
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from tests.soak.disturbed import Broken
from tests.soak.runs import Run, difference, saved_step, write_config

STEPS = 8


def problem() -> Optional[str]:
    """Why nothing can be mounted here, or None."""
    if os.geteuid() != 0:
        return "only root can mount a disk of memory"
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    return None if probe.returncode == 0 else "mounting is not allowed here"


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of memory of `size` bytes at `folder`, for the block."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def full(folder: Path, tries: int) -> Counter:
    """Runs on disks of many sizes: a full disk is one line, and the run resumes with more room."""
    counts: Counter[str] = Counter()
    config = write_config(folder)
    if Run(config, folder / "whole").wait() != [0]:
        raise Broken((folder / "whole.output").read_text())
    needed = sum(path.stat().st_size for path in (folder / "whole").rglob("*") if path.is_file())
    for number in range(tries):
        size = int(needed * (0.05 + number / tries))
        with disk(folder / "disk", size):
            _full(_go_on(config, folder), config, folder, counts)
    return counts


def _full(codes: list[int], config: Path, folder: Path, counts: Counter) -> None:
    run = folder / "disk" / "run"
    said = _said(folder)
    if codes == [0]:
        counts["disks that were large enough"] += 1
    else:
        lines = [line for line in said.splitlines() if "error" in line.lower()]
        if codes != [2] or len(lines) != 1 or "No space left on device" not in lines[0]:
            raise Broken(f"exit code {codes} on a full disk: {said}")
        counts["full disks, told in one line with exit code 2"] += 1
    before = saved_step(run, STEPS)
    counts["most steps saved on a disk that got full"] = max(
        counts["most steps saved on a disk that got full"], before if codes != [0] else 0
    )
    _mount("-o", "remount,size=64m", str(folder / "disk"))
    if _go_on(config, folder) != [0]:
        raise Broken(f"with room again: {_said(folder)}")
    if before and "weights are random" in _said(folder):
        raise Broken("a run that had a checkpoint began anew")
    _compare(folder, run, counts)


def read_only(folder: Path) -> Counter:
    """A run on a disk that becomes read-only: one line, and no file changes."""
    counts: Counter[str] = Counter()
    config = write_config(folder)
    with open(config, "a") as file:
        file.write("lr_schedule: exponential\n")  # which lets a run of one epoch go on to more
    if Run(config, folder / "whole").wait() != [0]:
        raise Broken((folder / "whole.output").read_text())
    with disk(folder / "disk", 64 << 20):
        place = str(folder / "disk")
        for begun in (False, True):
            if begun:
                if _go_on(config, folder, "max_epoch=1") != [0]:
                    raise Broken(_said(folder))
                (folder / "disk" / "run" / ".left.1.staged").write_text("by a kill")
            before = _contents(folder / "disk")
            _mount("-o", "remount,ro", place)
            codes = _go_on(config, folder)
            lines = [line for line in _said(folder).splitlines() if "error" in line.lower()]
            if codes != [2] or len(lines) != 1 or "Read-only file system" not in lines[0]:
                raise Broken(f"exit code {codes} on a read-only disk: {_said(folder)}")
            if _contents(folder / "disk") != before:
                raise Broken("a read-only disk was changed")
            counts["read-only disks, told in one line with exit code 2"] += 1
            _mount("-o", "remount,rw", place)
        if _go_on(config, folder) != [0]:
            raise Broken(_said(folder))
        _compare(folder, folder / "disk" / "run", counts)
    return counts


def _go_on(config: Path, folder: Path, *arguments: str) -> list[int]:
    return Run(config, folder / "disk" / "run", *arguments, output=folder / "run.output").wait()


def _said(folder: Path) -> str:
    return (folder / "run.output").read_text()


def _compare(folder: Path, run: Path, counts: Counter) -> None:
    found = difference(folder / "whole", run)
    if found:
        raise Broken(f"the run that went on differs in {found}")
    counts["runs that ended bit-identical to the undisturbed one"] += 1


def _contents(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
