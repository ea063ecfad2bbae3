"""Shows the status line of the demo, and prints the first captions of its captioners."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from tqdm import tqdm

from captioning.config import Config
from captioning.data.caption_files import read_predictions
from captioning.data.sources import read_split
from captioning.demo.remaining import TimeEstimate, format_seconds
from captioning.runtime.jobs import Observer
from captioning.runtime.progress import log_line
from captioning.training.run_log import read_log
from captioning.training.validation_history import evaluation_name

# {job's name: its title in the status line}
TITLES = {"pretrain": "MLE", "mle": "MLE", "smile": "SMILE", "mle_smile": "MLE + SMILE"}
# Training takes this share of the time of the pre-training run and of other runs. Captioning and
# scoring, which are not followed, take the rest.
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

    def follow(self, configs: Mapping[str, Config], first: Sequence[Config]) -> None:
        """Show how far the logs of runs are, {job's name in TITLES: its run's configuration}.

        first: the configurations of an MLE run and of a SMILE run. When both have captioned the
        validation split after their first epoch, their captions of EXAMPLES images are printed.
        They are printed only once, and not if both runs captioned the split in an earlier demo.
        """
        self.configs, self.first_runs = configs, first
        images = {name: len(read_split(config, "train")) for name, config in configs.items()}
        self.steps_of_runs = {
            name: images[name] * config.max_epoch / config.batch_size
            for name, config in configs.items()
        }

    def on_end(self, name: str, reason: Optional[str]) -> None:
        if name in self.configs and reason is None:
            self.shares[name] = 1.0

    def poll(self) -> None:
        self._print_first_captions()
        if time.monotonic() < self.next_time:
            return
        on_terminal = sys.stderr.isatty()
        self.next_time = time.monotonic() + (0.5 if on_terminal else 30)
        known = {*self.shares}
        for name, config in self.configs.items():
            log = read_log(Path(config.output_dir, "log.jsonl"))
            steps = [line["step"] for line in log if line["event"] == "step"]
            if steps and self.shares.get(name) != 1:
                training = TRAINING_SHARE_OF_PRETRAINING if name == "pretrain" else TRAINING_SHARE
                self.shares[name] = training * min(1.0, steps[-1] / self.steps_of_runs[name])
        if self.shares:
            share = sum(self.shares.values()) / len(self.configs)
            # The first share of a resumed run includes the work of an earlier demo. It does not
            # count: the pace would be overestimated.
            self.estimate.record(self.number, share, measures=known == {*self.shares})
            parts = ", ".join(f"{TITLES[name]} {share:.0%}" for name, share in self.shares.items())
            self._show(f"{self._label()} {parts}; {self._time_left()}", on_terminal)

    def end(self) -> None:
        # A step without shown jobs does no training. Its pace says nothing about the pace of other
        # steps, so it does not count.
        self.estimate.record(self.number, 1.0, measures=bool(self.shares))
        if self.line is not None:
            self.line.close()
        self.line, self.next_time = None, 0.0

    def _show(self, text: str, on_terminal: bool):
        """Show the status. On a terminal the line is redrawn; otherwise a line is logged."""
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
