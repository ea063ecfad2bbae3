"""What a program shows while it works: lines and progress bars, once for all processes."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Optional

from tqdm import tqdm

from captioning.runtime.distributed import is_main

_kept: Optional[list[str]] = None


def keep_said() -> list[str]:
    """In a process whose lines another one prints: what is said from now on, as it comes."""
    global _kept
    _kept = []
    return _kept


def say(line: str) -> None:
    """Print a line for the user, once, however many processes there are."""
    if _kept is not None:
        _kept.append(line)
    elif is_main():
        tqdm.write(line, file=sys.stderr)


_work: list[str] = []  # what the bars belong to, the outermost first


@contextlib.contextmanager
def part_of(work: str) -> Iterator[None]:
    """Let the bars within say which part of some larger work they belong to."""
    _work.append(work)
    try:
        yield
    finally:
        _work.pop()


def progress(total: Optional[int], description: str, unit: str = "img", initial: int = 0) -> tqdm:
    """A bar that counts images (or `unit`), how many a second and the time left; on rank 0 alone.

    initial: those that an earlier program has done. total: None where nobody knows.

    Where nobody watches (a log file), it prints a line every half minute instead of ten a second.
    """
    interval = 0.1 if sys.stderr.isatty() else 30.0
    return tqdm(
        total=total,
        initial=initial,
        desc=" ".join([*_work, description]),
        unit=unit,
        disable=not is_main(),
        mininterval=interval,
        dynamic_ncols=True,
    )
