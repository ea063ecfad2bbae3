"""Prints the first captions of the demo, from captioners that are still being trained."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from captioning.config import Config
from captioning.data import read_split
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, report_bars_to

EXAMPLES = 2


class FirstCaptions:
    """Captions of two images by an MLE run and a SMILE run, after both have finished an epoch."""

    def __init__(self) -> None:
        self.shown = False
        self.tried: list[list[Path]] = []

    def show_if_there(self, configs: Sequence[Config]) -> None:
        """Print the captions once. configs: the configurations of the two runs."""
        if self.shown:
            return
        newest = [checkpoints.of_epochs(Path(config.output_dir)) for config in configs]
        if not all(newest) or newest == self.tried:
            return
        self.tried = newest
        samples = read_split(configs[0], "test")
        samples = samples[:: len(samples) // EXAMPLES][:EXAMPLES]
        captions = []
        with (
            report_bars_to(lambda description, share: None),
            suppress(UserError),
        ):  # the checkpoint was removed
            for config, epochs in zip(configs, newest):
                config = config.model_copy(update={"num_workers": 0})
                captioner, _ = captioner_from(config, str(epochs[-1]))
                results = caption_images(captioner, samples, config, torch.device("cpu"), "")
                captions.append([result["caption"] for result in results])
        if len(captions) < len(configs):
            return
        self.shown = True
        log_line("\nthe first captions of the captioners that are being trained:")
        for sample, mle, smile in zip(samples, *captions):
            log_line(f"{Path(sample.image)}\n  MLE    {mle}\n  SMILE  {smile}")
        log_line("")
