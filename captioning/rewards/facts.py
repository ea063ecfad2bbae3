"""What a caption says truly of a drawn scene, less what it says wrongly."""

import numpy as np

from captioning.data.caption_files import by_id
from captioning.metrics.facts import stated_and_true
from captioning.rewards.interface import Reward, Said, TrainingImages
from captioning.runtime.errors import UserError
from captioning.scenes.facts import read_caption
from captioning.scenes.make import read_scenes


class TrueFacts(Reward):
    """True facts minus wrong facts, as the metric `facts` counts them."""

    def __init__(self, images: TrainingImages):
        self.scenes = by_id(images.files, read_scenes(images.facts_file))
        unknown = [image_id for image_id, scene in self.scenes.items() if not scene]
        if unknown:
            raise UserError(
                f"reward: facts: {images.facts_file} does not say what is in training image "
                f"{unknown[0]!r}"
            )

    def __call__(self, image_ids, captions) -> np.ndarray:
        pairs = zip(image_ids, captions)
        return np.array([[self._one(i, said) for said in group] for i, group in pairs], dtype=float)

    def _one(self, image_id, said: Said) -> float:
        stated, true = stated_and_true(read_caption(said.text), self.scenes[image_id])
        return float(2 * true - stated)
