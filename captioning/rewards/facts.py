"""Computes a reward for captions of generated scenes: true facts minus wrong facts."""

import numpy as np

from captioning.metrics.base import entries_of, option_files
from captioning.metrics.facts import Facts, count_facts
from captioning.rewards.interface import Reward, TrainingImages
from captioning.scenes.facts import read_caption
from captioning.scenes.world import read_scenes


class FactsReward(Reward):
    """True facts minus wrong facts, as the metric `facts` counts them."""

    title = "true facts"
    options = Facts.options
    required = Facts.required

    def prepare(self, images: TrainingImages) -> None:
        [path] = option_files(self.config, "facts_file")
        self.scenes = entries_of(images.files, read_scenes(path), f"reward: facts: {path}")

    def __call__(self, image_ids, captions) -> np.ndarray:
        groups = (
            [count_facts(read_caption(sampled.text), self.scenes[image_id]) for sampled in group]
            for image_id, group in zip(image_ids, captions)
        )
        return np.array([[float(2 * count.correct - count.stated) for count in g] for g in groups])
