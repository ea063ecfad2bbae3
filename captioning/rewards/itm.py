"""Computes ITM as a reward: how well a caption matches its image, by BLIP's filter."""

import numpy as np

from captioning.metrics.batches import read_images
from captioning.metrics.itm import Itm, ItmScorer
from captioning.rewards.interface import Reward, TrainingImages


class ItmReward(Reward):
    """The probability that caption and image match: the metric ITM / 100."""

    title = "ITM"
    options = Itm.options
    required = ("itm_model",)

    def prepare(self, images: TrainingImages) -> None:
        self.files = images.files
        self.scorer = ItmScorer(self.config.itm_model, images.device)

    def __call__(self, image_ids, captions) -> np.ndarray:
        # An image that occurs several times in the batch is encoded once.
        distinct = list(dict.fromkeys(image_ids))
        encoded = self.scorer.encode(read_images(self.scorer.read, map(self.files.get, distinct)))
        texts = [[sampled.text for sampled in group] for group in captions]
        rows = [distinct.index(image_id) for image_id in image_ids]
        probabilities = self.scorer.model.match(encoded[rows], texts)
        return probabilities.double().cpu().numpy()
