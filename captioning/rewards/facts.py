"""Computes a reward for captions of generated scenes: true facts minus wrong facts."""

import numpy as np

from captioning.metrics.base import entries_of, option_files
from captioning.metrics.facts import Facts
from captioning.rewards.interface import Reward, TrainingImages
from captioning.scenes.facts import read_caption, true_facts
from captioning.scenes.world import Scene, read_scenes


class FactsReward(Reward):
    """True facts minus wrong facts, as the metric `facts` counts them."""

    title = "true facts"
    options = Facts.options
    required = Facts.required

    def prepare(self, images: TrainingImages) -> None:
        [path] = option_files(self.config, "facts_file")
        self.scenes = entries_of(images.files, read_scenes(path), f"reward: facts: {path}")

    def __call__(self, image_ids, captions) -> np.ndarray:
        pairs = zip(image_ids, captions)
        return np.array([[_true_minus_wrong(s.text, self.scenes[i]) for s in g] for i, g in pairs])


def _true_minus_wrong(caption: str, scene: Scene) -> float:
    statement = read_caption(caption)
    return float(2 * len(true_facts(statement, scene)) - len(statement.facts()))
