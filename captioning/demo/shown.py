"""The line that says how far the demo is, and how fast this machine is."""

import re
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F

from captioning.runtime.progress import say
from captioning.runtime.remaining import Remaining, StatusLine, spoken

TITLES = {"pretrain": "MLE", "mle": "MLE", "smile": "SMILE", "mle_smile": "MLE + SMILE"}

# A step of `pace` on the machine where the demo's steps took the seconds that they are given.
USUAL_SECONDS = 1.38e-3


class Step(NamedTuple):
    """title: what is done; seconds: what it takes on two cores, roughly; do: given the step."""

    title: str
    seconds: float
    do: Callable[["Shown"], None]


class Shown:
    """The line that says how far the demo is."""

    def __init__(self, steps: Sequence[Step]):
        self.steps, self.number, self.line = steps, 0, StatusLine()
        self.remaining = Remaining([step.seconds for step in steps])
        self.shares: dict[str, float] = {}

    def begin(self, number: int) -> None:
        self.number, self.shares = number, {}
        self.remaining.at(number, 0.0)
        left = spoken(self.remaining.left())
        say(f"\n{self._place()} {self.steps[number].title} (about {left} to go in all)")

    def heard(
        self, names: Sequence[str], training: float, name: str, description: str, share: float
    ) -> None:
        """A process of the step tells what its bar is called, and how much of it is done.

        names: of the runs that are counted; training: how much of a run that is.
        """
        if name not in names:
            return
        first = name not in self.shares
        of_run = _share_of_run(training, description, share)
        self.shares[name] = max(self.shares.get(name, 0.0), of_run)
        mean = sum(self.shares.get(each, 0.0) for each in names) / len(names)
        self.remaining.at(self.number, mean, first)

    def draw(self) -> None:
        parts = [f"{TITLES[name]} {share:.0%}" for name, share in self.shares.items()]
        left = spoken(self.remaining.left())
        if parts:
            self.line.show(f"{self._place()} {', '.join(parts)}; about {left} to go in all")

    def end(self) -> None:
        # A step without processes has a pace of its own, which tells nothing of the others'.
        self.remaining.at(self.number, 1.0, first=not self.shares)
        self.line.clear()

    def _place(self) -> str:
        return f"[{self.number + 1}/{len(self.steps)}]"


def _share_of_run(training: float, description: str, share: float) -> float:
    """How much of a run is done, by what a progress bar of it is called and shows."""
    epoch = re.match(r"epoch (\d+)/(\d+)$", description)
    if epoch:
        return training * (int(epoch[1]) - 1 + share) / int(epoch[2])
    return training + (1 - training) * share / 2 if description.endswith("test") else 0.0


def pace() -> float:
    """How many times as long as usual this machine takes to train small layers on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x = torch.linspace(-1, 1, 640 * 96).view(640, 96)
        weight = torch.linspace(-0.1, 0.1, 192 * 96).view(192, 96).requires_grad_()
        seconds = []
        for _ in range(40):
            began = time.perf_counter()
            F.layer_norm(F.gelu(x @ weight.T) @ weight, (96,)).square().mean().backward()
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return sorted(seconds)[len(seconds) // 2] / USUAL_SECONDS  # some are slower at first
