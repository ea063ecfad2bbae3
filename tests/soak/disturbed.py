"""Runs that are killed or stopped again and again, checked each time."""

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from captioning.files.writing import SUFFIX
from captioning.models import checkpoints
from tests.runs import Run, difference, last_step, saved_step, write_config

# STEPS and CHECKPOINT_EVERY are those of `write_config`.
STEPS, EPOCHS, CHECKPOINT_EVERY = 8, 6, 3
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class BrokenPromise(Exception):
    """A promise that was not kept."""


class Disturbed:
    """Runs of 48 steps with a checkpoint every 3, one after the other, disturbed until they end.

    processes: ranks of a run; signals: those that are sent; counts: the events.
    """

    def __init__(self, folder: Path, processes: int, signals: tuple, rng: random.Random):
        folder.mkdir(parents=True)
        self.folder, self.processes, self.signals, self.rng = folder, processes, signals, rng
        self.config = write_config(folder)
        self.settings = [f"max_epoch={EPOCHS}", f"batch_size={8 // processes}"]
        self.counts: Counter[str] = Counter()
        self.number = 0
        began = time.monotonic()
        if self._start("whole").wait() != [0] * processes:
            raise BrokenPromise((folder / "whole.output").read_text())
        self.seconds = time.monotonic() - began

    def disturb(self) -> None:
        """Kill or stop the run after a random time, unless it ends before."""
        name = f"run{self.number}"
        folder = self.folder / name
        run = self._start(name)
        before = last_step(folder)
        sent = self.rng.choice(self.signals)
        self._wait(run, before)
        if sent in STOP_SIGNALS and last_step(folder) <= before:
            sent = signal.SIGKILL  # the run may not handle signals yet
        ranks = None if sent == signal.SIGKILL else [self.rng.randrange(self.processes)]
        run.send(sent, ranks)
        codes = run.wait()
        if codes == [0] * self.processes and self._is_over(folder):
            self._compare(name)
        elif sent == signal.SIGKILL or self._is_over(folder):
            self._after_a_kill(folder, codes)
        else:
            self._after_a_request(folder, codes, run)

    def _wait(self, run: Run, before: int) -> None:
        """Wait until a random moment of the run, of its training, or while it writes a file."""
        kind = self.rng.choice(("any", "training", "writing"))
        until = time.monotonic() + self.rng.uniform(0.0, 0.8) * self.seconds
        if kind != "any":
            while last_step(run.folder) <= before and not run.ended():
                time.sleep(0.002)
            until = time.monotonic() + self.rng.uniform(0.0, 0.3) * self.seconds
        while time.monotonic() < until and not run.ended():
            time.sleep(0.001)
        while kind == "writing" and not run.ended() and not _is_writing(run.folder):
            pass

    def finish(self) -> None:
        """Let the current run end undisturbed, and compare it."""
        name = f"run{self.number}"
        if (self.folder / name).exists():
            if self._start(name).wait() != [0] * self.processes:
                raise BrokenPromise(f"{name} does not end: {self.folder / name}.output")
            self._compare(name)

    def _start(self, name: str) -> Run:
        return Run(self.config, self.folder / name, *self.settings, processes=self.processes)

    def _is_over(self, folder: Path) -> bool:
        return (folder / "result" / f"val_epoch{EPOCHS - 1:02d}" / "metrics.json").exists()

    def _after_a_kill(self, folder: Path, codes: list[int]) -> None:
        self.counts["killed by kill -9"] += codes.count(-9) > 0
        self.counts["of them while a file was being written"] += any(folder.rglob(f".*{SUFFIX}"))
        done, saved = last_step(folder), self._saved(folder)
        if done - saved > CHECKPOINT_EVERY:
            raise BrokenPromise(f"{folder}: {done} steps were done, {saved} are saved")
        self.counts["most steps lost by one kill"] = max(
            self.counts["most steps lost by one kill"], done - saved
        )

    def _after_a_request(self, folder: Path, codes: list[int], run: Run) -> None:
        if codes != [0] * self.processes:
            raise BrokenPromise(
                f"{folder}: exit codes {codes} after a request to stop: {run.said()}"
            )
        if last_step(folder) != self._saved(folder):
            raise BrokenPromise(f"{folder}: a request to stop lost steps")
        self.counts["stopped by SIGTERM, SIGUSR1 or Ctrl-C, nothing lost"] += 1

    def _saved(self, folder: Path) -> int:
        """The step of the newest checkpoint. All must be whole."""
        found = checkpoints.saved(folder)
        for path in found:
            checkpoints.check_whole(path)  # UserError
            checkpoints.read(path)
        self.counts["checkpoints verified"] += len(found)
        return saved_step(folder, STEPS)

    def _compare(self, name: str) -> None:
        different_part = difference(self.folder / "whole", self.folder / name)
        if different_part:
            run = self.folder / name
            raise BrokenPromise(f"{run} differs from the undisturbed run in {different_part}")
        self.counts["runs that ended bit-identical to the undisturbed one"] += 1
        self.counts["steps compared"] += STEPS * EPOCHS
        shutil.rmtree(self.folder / name)
        self.number += 1


def _is_writing(folder: Path) -> bool:
    return any(name.endswith(SUFFIX) for name in os.listdir(folder)) if folder.exists() else False
