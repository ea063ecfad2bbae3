"""Log lines and progress bars of a program. Only rank 0 prints them."""

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Callable, Optional

from tqdm import tqdm

from captioning.runtime.distributed import is_main
from captioning.runtime.errors import visible

_collected_lines: Optional[list[str]] = None


def collect_lines() -> list[str]:
    """Collect lines in the returned list from now on, for another process to print."""
    global _collected_lines
    _collected_lines = []
    return _collected_lines


def log_line(line: str) -> None:
    """Print a line for the user, only on rank 0."""
    if _collected_lines is not None:
        _collected_lines.append(line)
    elif is_main():
        tqdm.write(visible(line), file=sys.stderr)


_prefixes: list[str] = []  # prefixes of the bars' descriptions, outermost first


@contextlib.contextmanager
def bar_prefix(prefix: str) -> Iterator[None]:
    """Within the block, prefix the bars' descriptions with the name of the larger task."""
    _prefixes.append(prefix)
    try:
        yield
    finally:
        _prefixes.pop()


class _ReportedBar(tqdm):
    """A bar that is not drawn: the listener gets its description and its share from 0 to 1."""

    def display(self, msg=None, pos=None) -> None:
        if self.total:
            _listener(self.desc, self.n / self.total)


_listener: Optional[Callable[[str, float], None]] = None


def report_bars_to(listener: Callable[[str, float], None]) -> None:
    """Report bars to `listener` from now on, instead of drawing them."""
    global _listener
    _listener = listener


def progress(total: Optional[int], description: str, unit: str = "img", initial: int = 0) -> tqdm:
    """Return a bar that counts images (or `unit`), with rate and time left; only on rank 0.

    total: None if unknown. initial: the count that earlier calls reached. In a log file the bar is
    printed every half minute.
    """
    reported = _listener is not None
    return (_ReportedBar if reported else tqdm)(
        total=total,
        initial=initial,
        desc=visible(" ".join([*_prefixes, description])),
        unit=unit,
        disable=not is_main(),
        mininterval=0.3 if reported else 0.1 if sys.stderr.isatty() else 30.0,
        dynamic_ncols=True,
        file=io.StringIO() if reported else sys.stderr,
    )
