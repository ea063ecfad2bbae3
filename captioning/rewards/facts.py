"""A reward for captions of `captioning.scenes`: true facts minus wrong facts."""

from pathlib import Path

import numpy as np

from captioning.data.caption_files import by_id
from captioning.metrics.facts import FactsOptions, stated_and_true
from captioning.rewards.interface import Reward, TrainingImages
from captioning.runtime.errors import UserError
from captioning.scenes.facts import read_caption
from captioning.scenes.make import read_scenes


class FactsReward(Reward):
    """True facts minus wrong facts, as the metric `facts` counts them."""

    title = "true facts"
    Options = FactsOptions
    required = ("facts_file",)

    def prepare(self, images: TrainingImages) -> None:
        path = self.options.facts_file
        self.scenes = by_id(images.files, read_scenes(Path(path)))
        unknown = [image_id for image_id, scene in self.scenes.items() if not scene]
        if unknown:
            raise UserError(f"reward: facts: {path} has no entry for training image {unknown[0]!r}")

    def __call__(self, image_ids, captions) -> np.ndarray:
        values = []
        for image_id, group in zip(image_ids, captions):
            scene = self.scenes[image_id]
            counts = [stated_and_true(read_caption(sampled.text), scene) for sampled in group]
            values.append([float(2 * true - stated) for stated, true in counts])  # true - wrong
        return np.array(values)
