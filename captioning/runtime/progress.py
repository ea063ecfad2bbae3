"""Prints log lines and progress bars, only on rank 0."""

import sys
from functools import cache
from typing import Optional

from tqdm import tqdm

from captioning.runtime.distributed import is_main
from captioning.runtime.errors import visible


def log_line(line: str) -> None:
    """Print a line for the user to stderr, only on rank 0."""
    if is_main():
        tqdm.write(visible(line), file=sys.stderr)


@cache
def log_once(line: str) -> None:
    """Like `log_line`, but print an equal line only once, as of a file that is read again."""
    log_line(line)


def progress(total: Optional[int], description: str, unit: str = "img", initial: int = 0) -> tqdm:
    """Return a progress bar that counts images (or `unit`). It is only shown on rank 0.

    The bar shows the rate and the remaining time. If stderr is not a terminal, the bar is printed
    every 30 seconds. total: the count at the end; None if unknown. initial: the count that earlier
    calls of the program have reached.
    """
    return tqdm(
        total=total,
        initial=initial,
        desc=visible(description),
        unit=unit,
        disable=not is_main(),
        mininterval=0.1 if sys.stderr.isatty() else 30.0,
        dynamic_ncols=True,
    )
