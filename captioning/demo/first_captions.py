"""Prints the first captions of the demo, from captioners that are still being trained."""

from collections.abc import Sequence
from pathlib import Path

from captioning.config import Config
from captioning.data import read_split
from captioning.data.caption_files import read_predictions
from captioning.runtime.progress import log_line
from captioning.training.validation_history import evaluation_name

EXAMPLES = 2


class FirstCaptions:
    """Prints the captions of two images by an MLE and a SMILE run after their first epoch, once."""

    def __init__(self) -> None:
        self.shown = False

    def show_when_ready(self, configs: Sequence[Config]) -> None:
        """Print the captions when both runs have written them.

        configs: the configurations of the MLE run and of the SMILE run.
        """
        name = f"{evaluation_name(0)}.json"
        files = [Path(config.output_dir, "result", name) for config in configs]
        if self.shown or not all(file.exists() for file in files):
            return
        self.shown = True
        mle, smile = map(read_predictions, files)
        samples = read_split(configs[0], "val")
        log_line("\nthe first captions of the captioners that are being trained:")
        for sample in samples[:: len(samples) // EXAMPLES][:EXAMPLES]:
            image_id = sample.image_id
            log_line(f"{Path(sample.image)}\n  MLE    {mle[image_id]}\n  SMILE  {smile[image_id]}")
        log_line("")
