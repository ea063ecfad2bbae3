"""Prints log lines and progress bars, only on rank 0."""

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Callable, Optional

from tqdm import tqdm

from captioning.runtime.distributed import is_main
from captioning.runtime.errors import visible

# Where this process sends its output. It is state of the module, so that code which logs or shows a
# bar need not know who has started the process.
_collected_lines: Optional[list[str]] = None  # see `collect_lines`; None if lines are printed
_bar_listener: Optional[Callable[[str, float], None]] = None  # see `report_bars_to`
_bar_prefixes: list[str] = []  # see `bar_prefix`; outermost first


def collect_lines() -> list[str]:
    """From now on, append log lines to the returned list instead of printing them.

    A `CaptioningActor` sends these lines to the driver, which prints them.
    """
    global _collected_lines
    _collected_lines = []
    return _collected_lines


def log_line(line: str) -> None:
    """Print a line for the user to stderr, only on rank 0."""
    if _collected_lines is not None:
        _collected_lines.append(line)
    elif is_main():
        tqdm.write(visible(line), file=sys.stderr)


@contextlib.contextmanager
def bar_prefix(prefix: str) -> Iterator[None]:
    """Within the block, put `prefix`, such as a larger task's name, before descriptions of bars."""
    _bar_prefixes.append(prefix)
    try:
        yield
    finally:
        _bar_prefixes.pop()


class _ReportedBar(tqdm):
    """A bar that is not drawn. Instead, `_bar_listener` is called; see `report_bars_to`."""

    def display(self, msg=None, pos=None) -> None:
        if self.total:
            _bar_listener(self.desc, self.n / self.total)


def report_bars_to(listener: Callable[[str, float], None]) -> None:
    """From now on, report progress bars to `listener` instead of drawing them.

    listener: called with a bar's description and its finished part, from 0 to 1.
    """
    global _bar_listener
    _bar_listener = listener


def progress(total: Optional[int], description: str, unit: str = "img", initial: int = 0) -> tqdm:
    """Return a progress bar that counts images (or `unit`). It is only shown on rank 0.

    The bar shows the rate and the remaining time. If stderr is not a terminal, the bar is printed
    every 30 seconds. total: the count at the end; None if unknown. initial: the count that earlier
    calls of the program have reached.
    """
    reported = _bar_listener is not None
    drawing_interval_s = 0.1 if sys.stderr.isatty() else 30.0
    return (_ReportedBar if reported else tqdm)(
        total=total,
        initial=initial,
        desc=visible(" ".join([*_bar_prefixes, description])),
        unit=unit,
        disable=not is_main(),
        mininterval=0.3 if reported else drawing_interval_s,
        dynamic_ncols=True,
        file=io.StringIO() if reported else sys.stderr,
    )
