"""CLIP's features of captions and images, shared over processes and made once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
import torch

from captioning.metrics.clip import Clip
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.feature_files import CachedFeatures
from captioning.metrics.over_ranks import batches_by_length, batches_of, shared, together
from captioning.runtime.distributed import broadcast_from_main, is_main


class ClipFeatures:
    """One CLIP for all evaluators of a set of captions. All processes have to ask alike."""

    def __init__(self, settings: Settings):
        self.batch_size, self.cache = settings.batch_size, settings.cache_dir
        self.clip = together(lambda: Clip(settings.clip_model, settings.device))

    def of_texts(
        self, texts: Sequence[str], description: str
    ) -> tuple[Optional[np.ndarray], list[bool]]:
        """Return (N, D) unit vectors, on rank 0, and which texts were too long."""
        ids, long = self.clip.encode(list(texts))

        def compute(batch):
            return self.clip.text_features(batch).cpu().numpy()

        batches = batches_by_length([len(text) for text in ids], self.batch_size)
        return shared(batches, ids.__getitem__, compute, description, "caption"), long

    def of_images(self, paths: Sequence[Path], description: str) -> Optional[np.ndarray]:
        """Return (P, D) unit vectors of image files, on rank 0; from the cache where it has them.

        Raises UserError for a file that cannot be read.
        """
        cached, known = together(lambda: self._cached(paths))
        if broadcast_from_main(known is not None):
            return known

        def compute(images):
            return self.clip.image_features(torch.stack(images)).cpu().numpy()

        batches = batches_of(len(paths), self.batch_size)
        read = self.clip.read_image
        features = shared(batches, lambda index: read(paths[index]), compute, description)
        if cached:
            cached.write(features)
        return features

    def _cached(self, paths):
        """The place of these features and what it holds, looked up by rank 0 alone."""
        if not is_main():
            return None, None
        cached = CachedFeatures(self.cache, self.clip, paths)
        return cached, cached.read()


def clip_features(captions: CaptionSet, settings: Settings) -> ClipFeatures:
    """Return those that the evaluators of these captions share, made when the first one asks."""
    if ClipFeatures not in captions.shared:
        captions.shared[ClipFeatures] = ClipFeatures(settings)
    return captions.shared[ClipFeatures]
