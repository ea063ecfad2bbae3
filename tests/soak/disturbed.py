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
LOST = "most steps lost by one kill"


class Disturbed:
    """Runs of 48 steps with a checkpoint every 3, one after the other, disturbed until they end.

    - processes: ranks of a run
    - signals: those that are sent, SIGKILL among them
    - counts: of events

    Methods raise AssertionError for a promise that was not kept.
    """

    def __init__(self, folder: Path, processes: int, signals: tuple, rng: random.Random):
        folder.mkdir(parents=True)
        self.folder, self.processes, self.signals, self.rng = folder, processes, signals, rng
        self.config, self.run, self.counts = write_config(folder), folder / "run", Counter()
        began = time.monotonic()
        self._finish(folder / "whole")
        self.seconds = time.monotonic() - began

    def disturb(self) -> None:
        """Kill or stop the run after a random time, unless it ends before."""
        before, run = last_step(self.run), self._start(self.run)
        self._wait(run, before)
        sent = self.rng.choice(self.signals)
        if last_step(self.run) <= before:
            sent = signal.SIGKILL  # the run may not handle signals yet
        run.send(sent, None if sent == signal.SIGKILL else [self.rng.randrange(self.processes)])
        codes = run.wait()
        done, is_over = last_step(self.run), any(self.run.glob(f"result/val_epoch{EPOCHS - 1:02d}"))
        saved = self._check_checkpoints()
        if sent == signal.SIGKILL or is_over:
            self.counts["killed by kill -9"] += -9 in codes
            self.counts["of them while a file was being written"] += _is_writing(self.run)
            assert done - saved <= CHECKPOINT_EVERY, f"{done} steps were done, {saved} are saved"
            self.counts[LOST] = max(self.counts[LOST], done - saved)
        else:
            assert codes == [0] * self.processes, f"{codes} after {sent}: {run.said()}"
            assert done == saved, "a request to stop lost steps"
            self.counts["stopped by SIGTERM, SIGUSR1 or Ctrl-C, nothing lost"] += 1
        if is_over:
            self.finish()

    def finish(self) -> None:
        """Let the current run end undisturbed, compare it, and remove it."""
        if self.run.exists():
            self._finish(self.run)
            found = difference(self.folder / "whole", self.run)
            assert found is None, f"{self.run} differs from the undisturbed run in {found}"
            self.counts["runs that ended bit-identical to the undisturbed one"] += 1
            shutil.rmtree(self.run)

    def _start(self, folder: Path) -> Run:
        settings = f"max_epoch={EPOCHS}", f"batch_size={8 // self.processes}"
        return Run(self.config, folder, *settings, processes=self.processes)

    def _finish(self, folder: Path) -> None:
        run = self._start(folder)
        assert run.wait() == [0] * self.processes, run.said()

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

    def _check_checkpoints(self) -> int:
        """Check that all are whole, and return the step of the newest."""
        for path in checkpoints.saved(self.run):
            checkpoints.check_whole(path)  # UserError
            checkpoints.read(path)
            self.counts["checkpoints verified"] += 1
        return saved_step(self.run, STEPS)


def _is_writing(folder: Path) -> bool:
    return any(name.endswith(SUFFIX) for name in os.listdir(folder)) if folder.exists() else False
