"""The demo's status line."""

import re
from collections.abc import Sequence
from typing import Callable, NamedTuple

from captioning.config import Config
from captioning.demo.first_captions import FirstCaptions
from captioning.demo.remaining import StatusLine, TimeEstimate, format_seconds
from captioning.runtime.job_runner import Job, Observer
from captioning.runtime.progress import log_line

TITLES = {"pretrain": "MLE", "mle": "MLE", "smile": "SMILE", "mle_smile": "MLE + SMILE"}
# The share of a run's time that it trains. For the rest it captions and scores.
PRETRAINING, TRAINING = 0.98, 0.85


class Step(NamedTuple):
    """A step of the demo. seconds: its expected time on an idle machine. do: its function."""

    title: str
    seconds: float
    do: Callable[["DemoProgress"], None]


class DemoProgress(Observer):
    """Shows the progress of the demo's steps and jobs in one line."""

    def __init__(self, steps: Sequence[Step]):
        self.steps, self.number, self.line = steps, 0, StatusLine()
        self.estimate = TimeEstimate([step.seconds for step in steps])
        self.shares: dict[str, float] = {}
        self.first = FirstCaptions()

    def begin(self, number: int) -> None:
        self.number, self.shares = number, {}
        self.estimate.record(number, 0.0)
        left = format_seconds(self.estimate.seconds_left())
        log_line(f"\n{self._label()} {self.steps[number].title} (about {left} to go in all)")

    def follow(self, jobs: Sequence[Job], first: Sequence[Config]) -> None:
        """Show the jobs of a step. first: the configurations for `FirstCaptions`."""
        self.names = {job.name for job in jobs} & TITLES.keys()
        self.first_runs = first

    def progressed(self, name: str, description: str, share: float) -> None:
        if name not in self.names:
            return
        is_first = name not in self.shares
        run_share = _share_of_run(
            PRETRAINING if name == "pretrain" else TRAINING, description, share
        )
        self.shares[name] = max(self.shares.get(name, 0.0), run_share)
        self.estimate.record(self.number, sum(self.shares.values()) / len(self.names), is_first)

    def poll(self) -> None:
        parts = [f"{TITLES[name]} {share:.0%}" for name, share in self.shares.items()]
        left = format_seconds(self.estimate.seconds_left())
        if parts:
            self.line.show(f"{self._label()} {', '.join(parts)}; about {left} to go in all")
        self.first.show_when_ready(self.first_runs)

    def end(self) -> None:
        # A step without shown jobs does not train, so its pace is not that of the other steps.
        self.estimate.record(self.number, 1.0, first=not self.shares)
        self.line.clear()

    def _label(self) -> str:
        return f"[{self.number + 1}/{len(self.steps)}]"


def _share_of_run(training: float, description: str, share: float) -> float:
    """Return the finished share of a run. training: the share of training in its time.

    description, share: of the run's current progress bar.
    """
    epoch = re.match(r"epoch (\d+)/(\d+)$", description)
    if epoch:
        return training * (int(epoch[1]) - 1 + share) / int(epoch[2])
    return training + (1 - training) * share / 2 if description.endswith("test") else 0.0
