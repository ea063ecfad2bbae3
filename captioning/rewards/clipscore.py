"""Computes CLIPScore as a reward: how well a caption fits its image."""

import numpy as np
import torch

from captioning.metrics.batches import read_images
from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import PREFIX, ClipScore, image_score
from captioning.rewards.interface import Reward, TrainingImages


class ClipScoreReward(Reward):
    """2.5 * max(cos(caption, image), 0), which is the metric CLIPScore / 100.

    Image features are kept in memory for later epochs.
    """

    title = "CLIPScore"
    options = ClipScore.options

    def prepare(self, images: TrainingImages) -> None:
        self.files, self.features = images.files, {}
        self.clip = Clip(self.config.clip_model, images.device)

    def __call__(self, image_ids, captions) -> np.ndarray:
        with torch.autocast(self.clip.device.type, enabled=False):
            new_ids = [i for i in dict.fromkeys(image_ids) if i not in self.features]
            if new_ids:
                images = read_images(self.clip.read_image, map(self.files.get, new_ids))
                self.features.update(zip(new_ids, self.clip.image_features(images).cpu().numpy()))
            texts = [PREFIX + sampled.text for group in captions for sampled in group]
            text_features = self.clip.text_features(texts).cpu().numpy()
        count = len(captions[0])
        images = np.repeat([self.features[image_id] for image_id in image_ids], count, axis=0)
        return image_score(text_features, images, ClipScore.factor).reshape(-1, count)
