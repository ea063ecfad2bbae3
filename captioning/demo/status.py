"""Shows the status line of the demo, and prints the first captions of its captioners."""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from tqdm import tqdm

from captioning.config import Config
from captioning.data.caption_files import read_predictions
from captioning.data.sources import read_split
from captioning.demo.remaining import TimeEstimate, format_seconds
from captioning.runtime.job_runner import Job, Observer
from captioning.runtime.progress import log_line
from captioning.training.validation_history import evaluation_name

# {job's name: its title in the status line}
TITLES = {"pretrain": "MLE", "mle": "MLE", "smile": "SMILE", "mle_smile": "MLE + SMILE"}
# Training takes this share of the time of the pre-training run and of other runs. Captioning and
# scoring take the rest.
TRAINING_SHARE_OF_PRETRAINING, TRAINING_SHARE = 0.98, 0.85
EXAMPLES = 2  # images whose first captions are printed


class Step(NamedTuple):
    """A step of the demo.

    seconds: the expected duration on an idle machine. run: the function that runs the step.
    """

    title: str
    seconds: float
    run: Callable[["DemoProgress"], None]


class DemoProgress(Observer):
    """Shows the progress of the demo's steps and jobs in one line."""

    def __init__(self, steps: Sequence[Step]):
        self.steps, self.started = steps, time.time()
        self.estimate = TimeEstimate([step.seconds for step in steps])
        self.line: Optional[tqdm] = None  # the status line; used only on a terminal
        self.next_time = 0.0  # when the status is shown next, in time.monotonic()
        self.has_captions = False  # whether the first captions have been printed

    def begin(self, number: int) -> None:
        self.number = number
        self.shares = {}  # {name of a shown job: finished share of its run}
        self.estimate.record(number, 0.0)
        log_line(f"\n{self._label()} {self.steps[number].title} ({self._time_left()})")

    def follow(self, jobs: Sequence[Job], first: Sequence[Config]) -> None:
        """Show the progress of the jobs of the current step that have a title in TITLES.

        first: the configurations of an MLE run and of a SMILE run. When both have captioned the
        validation split after their first epoch, their captions of EXAMPLES images are printed.
        They are printed only once, and not if both runs captioned the split in an earlier demo.
        """
        self.shown_jobs = {job.name for job in jobs} & TITLES.keys()
        self.first_runs = first

    def on_progress(self, name: str, description: str, share: float) -> None:
        if name not in self.shown_jobs:
            return
        # The first report of a resumed job includes the work of an earlier, stopped demo. It does
        # not count for the pace, because the pace would be overestimated.
        is_first = name not in self.shares
        training = TRAINING_SHARE_OF_PRETRAINING if name == "pretrain" else TRAINING_SHARE
        run_share = _share_of_run(training, description, share)
        self.shares[name] = max(self.shares.get(name, 0.0), run_share)
        share = sum(self.shares.values()) / len(self.shown_jobs)
        self.estimate.record(self.number, share, measures=not is_first)

    def poll(self) -> None:
        if self.shares and time.monotonic() >= self.next_time:
            parts = ", ".join(f"{TITLES[name]} {share:.0%}" for name, share in self.shares.items())
            self._show(f"{self._label()} {parts}; {self._time_left()}")
        self._print_first_captions()

    def end(self) -> None:
        # A step without shown jobs does no training. Its pace says nothing about the pace of other
        # steps, so it does not count.
        self.estimate.record(self.number, 1.0, measures=bool(self.shares))
        if self.line is not None:
            self.line.close()
        self.line, self.next_time = None, 0.0

    def _show(self, text: str):
        """Show the status. On a terminal the line is redrawn; otherwise a line is logged.

        The next time is due half a second later on a terminal, otherwise half a minute later.
        """
        on_terminal = sys.stderr.isatty()
        self.next_time = time.monotonic() + (0.5 if on_terminal else 30)
        if not on_terminal:
            log_line(text)
        elif self.line is None:
            self.line = tqdm(desc=text, bar_format="{desc}", leave=False, dynamic_ncols=True)
        else:
            self.line.set_description_str(text)

    def _label(self) -> str:
        return f"[{self.number + 1}/{len(self.steps)}]"

    def _time_left(self) -> str:
        return f"about {format_seconds(self.estimate.seconds_left())} to go in all"

    def _print_first_captions(self):
        folders = [Path(config.output_dir, "result") for config in self.first_runs]
        files = [folder / f"{evaluation_name(0)}.json" for folder in folders]
        if self.has_captions or not all(file.exists() for file in files):
            return
        if max(file.stat().st_mtime for file in files) < self.started:  # from an earlier demo
            return
        self.has_captions = True
        mle, smile = map(read_predictions, files)
        samples = read_split(self.first_runs[0], "val")
        log_line("\nthe first captions of the captioners that are being trained:")
        for sample in samples[:: len(samples) // EXAMPLES][:EXAMPLES]:
            image_id = sample.image_id
            log_line(f"{Path(sample.image)}\n  MLE    {mle[image_id]}\n  SMILE  {smile[image_id]}")
        log_line("")


def _share_of_run(training: float, description: str, share: float) -> float:
    """Return the finished share of a run, from 0 to 1.

    training: the share of the run's time that training takes. description, share: the text and the
    finished share of the run's current progress bar. Captioning the test split counts for half of
    the time after training.
    """
    epoch = re.match(r"epoch (\d+)/(\d+)$", description)
    if epoch:
        return training * (int(epoch[1]) - 1 + share) / int(epoch[2])
    if description.endswith("test"):
        return training + (1 - training) * share / 2
    return 0.0
