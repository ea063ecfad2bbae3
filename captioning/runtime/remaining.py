"""How far a program of several steps is, in one line: what is done of the step, what is to come."""

import sys
import time
from collections.abc import Sequence
from typing import Callable, Optional

from tqdm import tqdm

_ENOUGH = 0.03  # of all the work, before its pace says more than what it was expected to take


class Remaining:
    """The time left, from what steps are expected to take and the pace of those so far.

    seconds: what each step takes on an idle machine, roughly. Only their ratios count soon.
    """

    def __init__(self, seconds: Sequence[float], clock: Callable[[], float] = time.monotonic):
        self.seconds, self.clock = list(seconds), clock
        self.step = self.share = 0
        self.began, self.done = clock(), 0.0  # expected seconds, of what was done since then
        self.stepped = self.began

    def at(self, step: int, share: float, first: bool = False) -> None:
        """So much of a step is done now, from 0 to 1.

        first: it may be of earlier times, and setting up has taken the time until now.
        """
        if step != self.step:
            self.step, self.share, self.stepped = step, 0.0, self.clock()
        if first:
            self.began, self.stepped = self.began + self.clock() - self.stepped, self.clock()
        else:
            self.done += max(0.0, share - self.share) * self.seconds[step]
        self.share = max(share, self.share)

    def left(self) -> float:
        """Seconds."""
        expected = self.seconds[self.step] * (1 - self.share) + sum(self.seconds[self.step + 1 :])
        known = self.done > _ENOUGH * sum(self.seconds)
        return expected * ((self.clock() - self.began) / self.done if known else 1.0)


def spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.1f} min"


class StatusLine:
    """A line that is always drawn again at the same place; in a log file, one each half minute."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.bar: Optional[tqdm] = None
        self.next = 0.0

    def show(self, line: str) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (0.5 if self.terminal else 30.0)
        if not self.terminal:
            print(line, file=sys.stderr, flush=True)
            return
        if self.bar is None:
            self.bar = tqdm(bar_format="{desc}", leave=False, dynamic_ncols=True)
        self.bar.set_description_str(line)

    def clear(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar, self.next = None, 0.0
