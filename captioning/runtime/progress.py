"""What a program shows while it works: lines and progress bars, once for all processes."""

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Callable, Optional

from tqdm import tqdm

from captioning.runtime.distributed import is_main
from captioning.runtime.errors import visible

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
        tqdm.write(visible(line), file=sys.stderr)


_work: list[str] = []  # what the bars belong to, the outermost first


@contextlib.contextmanager
def part_of(work: str) -> Iterator[None]:
    """Let the bars within say which part of some larger work they belong to."""
    _work.append(work)
    try:
        yield
    finally:
        _work.pop()


class _Told(tqdm):
    """A bar that is not drawn: somebody is told what it is called, and its share from 0 to 1."""

    def display(self, msg=None, pos=None) -> None:
        if self.total and _listener is not None:
            _listener(self.desc, self.n / self.total)


_listener: Optional[Callable[[str, float], None]] = None


@contextlib.contextmanager
def heard_by(listener: Callable[[str, float], None]) -> Iterator[None]:
    """Let the bars within be told to `listener`, and not drawn."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def progress(total: Optional[int], description: str, unit: str = "img", initial: int = 0) -> tqdm:
    """A bar that counts images (or `unit`), how many a second and the time left; on rank 0 alone.

    initial: those that an earlier program has done. total: None where nobody knows.

    Where nobody watches (a log file), it prints a line every half minute instead of ten a second.
    """
    if _listener is not None:
        return _Told(
            total=total,
            initial=initial,
            desc=description,
            disable=not is_main(),
            mininterval=0.3,
            file=io.StringIO(),
        )
    interval = 0.1 if sys.stderr.isatty() else 30.0
    return tqdm(
        total=total,
        initial=initial,
        desc=visible(" ".join([*_work, description])),
        unit=unit,
        disable=not is_main(),
        mininterval=interval,
        dynamic_ncols=True,
    )
