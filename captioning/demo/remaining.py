"""Estimates the time left of a program with several steps."""

import time
from collections.abc import Sequence

# The measured pace is used only after this share of all work. Before, the work is assumed to take
# the expected time.
_MIN_SHARE = 0.03


class TimeEstimate:
    """Estimates the time left from the expected duration of each step and the pace so far.

    seconds: rough durations of the steps on an idle machine. Once the pace is measured, only the
    ratios of the durations matter.
    """

    def __init__(self, seconds: Sequence[float]):
        # Work (done, measured) is counted in the seconds that it was expected to take.
        self.seconds, self.done = list(seconds), 0.0
        self.measured = self.elapsed = 0.0  # the work that counts for the pace, and its real time
        self.last_report = time.monotonic()

    def record(self, step: int, share: float, measures: bool = True) -> None:
        """Record the finished share of a step, from 0 to 1.

        step: the index of the step. measures: whether the work and the time since the last call
        count for the pace.
        """
        now, done = time.monotonic(), sum(self.seconds[:step]) + self.seconds[step] * share
        if measures:
            self.measured += done - self.done
            self.elapsed += now - self.last_report
        self.done, self.last_report = done, now

    def seconds_left(self) -> float:
        """Return the estimated time left for all steps."""
        total = sum(self.seconds)
        has_pace = self.measured > _MIN_SHARE * total
        return (total - self.done) * (self.elapsed / self.measured if has_pace else 1.0)


def format_seconds(seconds: float) -> str:
    """Return a duration as text: "40 s" or "1.6 min"."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.1f} min"
