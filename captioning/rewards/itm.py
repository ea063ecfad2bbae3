"""ITM as a reward: how well a caption matches its image, by BLIP's filter."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from captioning.metrics.itm_model import ItmOptions, ItmScorer
from captioning.metrics.over_ranks import READERS, on_all_ranks
from captioning.rewards.interface import Reward, TrainingImages


class ItmReward(Reward):
    """The probability that caption and image match: the metric ITM / 100."""

    title = "ITM"
    Options = ItmOptions
    required = ("itm_model",)
    on_device = True

    def prepare(self, images: TrainingImages) -> None:
        self.files = images.files
        self.scorer = on_all_ranks(lambda: ItmScorer(self.options.itm_model, images.device))

    def __call__(self, image_ids, captions) -> np.ndarray:
        rows = {image_id: row for row, image_id in enumerate(dict.fromkeys(image_ids))}
        with ThreadPoolExecutor(READERS) as pool:
            pixels = list(pool.map(lambda i: self.scorer.read(self.files[i]), rows))
        encoded = self.scorer.encode(torch.stack(pixels))  # encodes each image once
        texts = [[sampled.text for sampled in group] for group in captions]
        found = self.scorer.match(encoded[[rows[image_id] for image_id in image_ids]], texts)
        return found.double().cpu().numpy()
