"""Estimates the time left of a program with several steps, and shows it in a status line."""

import sys
import time
from collections.abc import Sequence
from typing import Callable, Optional

from tqdm import tqdm

_ENOUGH = 0.03  # share of all work after which the measured pace replaces the expected pace


class Remaining:
    """Estimates the time left from the expected time of each step and the pace so far.

    seconds: rough durations of the steps on an idle machine. After a while only ratios matter.
    """

    def __init__(self, seconds: Sequence[float], clock: Callable[[], float] = time.monotonic):
        self.seconds, self.clock = list(seconds), clock
        self.step = self.share = 0
        self.began, self.done = clock(), 0.0  # done: expected seconds of the work since `began`
        self.stepped = self.began

    def at(self, step: int, share: float, first: bool = False) -> None:
        """Record the finished share of a step, from 0 to 1.

        first: this is the step's first report. An earlier call of the program may have done the
        share, and the time since the step began was set-up. Neither counts for the pace.
        """
        if step != self.step:
            self.step, self.share, self.stepped = step, 0.0, self.clock()
        if first:
            self.began, self.stepped = self.began + self.clock() - self.stepped, self.clock()
        else:
            self.done += max(0.0, share - self.share) * self.seconds[step]
        self.share = max(share, self.share)

    def left(self) -> float:
        """The estimated time left, in seconds."""
        expected = self.seconds[self.step] * (1 - self.share) + sum(self.seconds[self.step + 1 :])
        known = self.done > _ENOUGH * sum(self.seconds)
        return expected * ((self.clock() - self.began) / self.done if known else 1.0)


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.1f} min"


class StatusLine:
    """A line that is redrawn in place; in a log file it is printed every half minute."""

    def __init__(self) -> None:
        self.bar: Optional[tqdm] = None
        self.next = 0.0

    def show(self, line: str) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if now < self.next:
            return
        self.next = now + (0.5 if terminal else 30.0)
        if not terminal:
            print(line, file=sys.stderr, flush=True)
            return
        if self.bar is None:
            self.bar = tqdm(bar_format="{desc}", leave=False, dynamic_ncols=True)
        self.bar.set_description_str(line)

    def clear(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar, self.next = None, 0.0
