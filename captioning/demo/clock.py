"""Shows how far the demo is and the time left, and prints its captioners' first captions."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from captioning.data.caption_files import read_predictions
from captioning.runtime.jobs import Observer
from captioning.runtime.progress import log_line
from captioning.scenes.make import image_name
from captioning.sweep.runs import SweepRun
from captioning.training.log import read_log
from captioning.training.validation import evaluation_name

PACE = 1200  # images per second that all runs train together, on two cores
SCORING_S = 8  # from the end of training to the report
PRIOR_S = 20  # the estimate of the pace begins as if PACE had been measured for this long
POLL_S = 1.0  # seconds between two readings of the runs' logs
EXAMPLES = 2  # images whose first captions are printed


class Clock(Observer):
    """Estimates the time left of all runs from the images that they have trained on.

    - runs: all runs of the demo
    - images: the number of images in the training split
    - first_runs: an MLE run and a SMILE run. When both have captioned the validation split for the
      first time, some of their captions are printed
    - data: the folder of the images
    """

    def __init__(
        self, runs: Iterable[SweepRun], images: int, first_runs: Iterable[SweepRun], data: Path
    ):
        configs = {run.folder: run.config() for run in runs}
        self.batch_sizes = {folder: config.batch_size for folder, config in configs.items()}
        self.data, self.polled_at = data, -POLL_S
        files = [run.folder / "result" / f"{evaluation_name(0)}.json" for run in first_runs]
        # Captions that an earlier call has printed are not printed again.
        self.awaited_files = [] if all(file.exists() for file in files) else files
        self.bar = tqdm(
            total=sum(images * config.max_epoch for config in configs.values()) + SCORING_S * PACE,
            initial=self._trained_images(),  # by an earlier call, which tells nothing of the pace
            bar_format="{desc}: {percentage:.0f}%, about {remaining} to go in all",
            smoothing=0,
            mininterval=0.5 if sys.stderr.isatty() else 30,
            dynamic_ncols=True,
            leave=False,
            delay=1e-9,  # not before the first update
        )
        self.bar.start_t -= PRIOR_S
        self.bar.initial -= PRIOR_S * PACE

    def _trained_images(self) -> int:
        """Return the number of images on which the runs have trained so far."""
        images = 0
        for folder, batch_size in self.batch_sizes.items():
            log = read_log(folder / "log.jsonl")
            steps = (line["step"] for line in log if line["event"] == "step")
            images += batch_size * max(steps, default=0)
        return images

    def poll(self) -> None:
        if time.monotonic() - self.polled_at < POLL_S:
            return
        self.polled_at = time.monotonic()
        self.bar.update(self._trained_images() - self.bar.n)
        if self.awaited_files and all(file.exists() for file in self.awaited_files):
            mle, smile = map(read_predictions, self.awaited_files)
            self.awaited_files = []
            lines = ["\nthe first captions of the captioners that are being trained:"]
            for image_id in list(mle)[:: len(mle) // EXAMPLES][:EXAMPLES]:
                path = self.data / image_name(image_id)
                lines.append(f"{path}\n  MLE    {mle[image_id]}\n  SMILE  {smile[image_id]}")
            log_line("\n".join([*lines, ""]))
