"""Computes a reward for captions of generated scenes: true facts minus wrong facts."""

import numpy as np

from captioning.data.caption_files import entries_of
from captioning.metrics.facts import Facts
from captioning.metrics.options import option_files
from captioning.rewards.interface import Reward, TrainingImages
from captioning.scenes.facts import read_caption, true_facts
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
        def true_minus_wrong(caption, scene):
            statement = read_caption(caption)
            return 2.0 * len(true_facts(statement, scene)) - len(statement.facts())

        return np.array(
            [
                [true_minus_wrong(sampled.text, self.scenes[image_id]) for sampled in group]
                for image_id, group in zip(image_ids, captions)
            ]
        )
