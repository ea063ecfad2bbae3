"""Estimates the time left of a program with several steps, and shows it in a status line."""

import sys
import time
from collections.abc import Sequence
from typing import Callable, Optional

from tqdm import tqdm

# The pace is used once this share of all work is done. Until then, the expected times are.
_MIN_SHARE = 0.03


class TimeEstimate:
    """Estimates the time left from the expected time of each step and the pace so far.

    seconds: rough durations of the steps on an idle machine. Once the pace is measured, only their
    ratios matter.
    """

    def __init__(self, seconds: Sequence[float], clock: Callable[[], float] = time.monotonic):
        self.seconds, self.clock = list(seconds), clock
        self.step = self.share = 0
        # The pace is the time since `start`, divided by `done`: the seconds that the work in this
        # time was expected to take.
        self.start, self.done = clock(), 0.0
        self.last_report = self.start  # or the beginning of the step

    def record(self, step: int, share: float, first: bool = False) -> None:
        """Record the finished share of a step, from 0 to 1.

        first: true for the first report of a job of the step. A run of the program that was stopped
        may have done this share. Therefore it does not count for the pace, and neither does the
        time since the previous report of any job or, before the first one, since the step began.
        """
        now = self.clock()
        if step != self.step:
            self.step, self.share, self.last_report = step, 0.0, now
        if first:
            self.start += now - self.last_report
        else:
            self.done += max(0.0, share - self.share) * self.seconds[step]
        self.share, self.last_report = max(share, self.share), now

    def seconds_left(self) -> float:
        """Return the estimated time left for all steps."""
        expected = self.seconds[self.step] * (1 - self.share) + sum(self.seconds[self.step + 1 :])
        has_pace = self.done > _MIN_SHARE * sum(self.seconds)
        return expected * ((self.clock() - self.start) / self.done if has_pace else 1.0)


def format_seconds(seconds: float) -> str:
    """Return a duration as text: "40 s" or "1.6 min"."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.1f} min"


class StatusLine:
    """A line that is redrawn in place; in a log file it is printed every half minute."""

    def __init__(self) -> None:
        self.bar: Optional[tqdm] = None
        self.next_time = 0.0

    def show(self, line: str) -> None:
        """Show the line, unless a line was shown a moment ago."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if now < self.next_time:
            return
        self.next_time = now + (0.5 if terminal else 30.0)
        if not terminal:
            print(line, file=sys.stderr, flush=True)
            return
        if self.bar is None:
            self.bar = tqdm(bar_format="{desc}", leave=False, dynamic_ncols=True)
        self.bar.set_description_str(line)

    def clear(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar, self.next_time = None, 0.0
