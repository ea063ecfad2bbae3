"""How well a caption fits its image, by CLIP, as the metric of that name has it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import PREFIX, ClipScore, image_score
from captioning.metrics.over_ranks import READERS, together
from captioning.rewards.interface import Reward, TrainingImages


class ClipFit(Reward):
    """2.5 * max(cos(caption, image), 0): a hundredth of the metric CLIPScore.

    What CLIP makes of an image is kept, as the next epochs ask for it again.
    """

    on_device = True

    def __init__(self, images: TrainingImages):
        self.files, self.seen = images.files, {}
        self.clip = together(lambda: Clip(images.clip_model, images.device))

    def __call__(self, image_ids, captions) -> np.ndarray:
        with torch.autocast(torch.device(self.clip.device).type, enabled=False):
            self._look_at([i for i in dict.fromkeys(image_ids) if i not in self.seen])
            ids, _ = self.clip.encode([PREFIX + said.text for group in captions for said in group])
            said = self.clip.text_features(ids).cpu().numpy()
        count = len(captions[0])
        seen = np.repeat([self.seen[image_id] for image_id in image_ids], count, axis=0)
        return image_score(said, seen, ClipScore.weight).reshape(-1, count)

    def _look_at(self, image_ids) -> None:
        if not image_ids:
            return
        with ThreadPoolExecutor(READERS) as pool:
            pixels = list(pool.map(lambda i: self.clip.read_image(self.files[i]), image_ids))
        features = self.clip.image_features(torch.stack(pixels)).cpu().numpy()
        self.seen.update(zip(image_ids, features))
