"""How well captions fit their images, and human captions, by CLIP (Hessel et al. 2021)."""

import numpy as np

from captioning.metrics.bootstrap import mean
from captioning.metrics.clip_features import clip_features
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result

PREFIX = "A photo depicts "
WEIGHT = 2.5


class ClipScore(Evaluator):
    """CLIPScore: 100 * 2.5 * max(cos(caption, image), 0); equation 1 of the paper.

    RefCLIPScore: the harmonic mean of it and of 100 * max(cos(caption, reference), 0) for the
    closest reference; equation 2. All texts begin with "A photo depicts ".
    """

    names = ("CLIPScore", "RefCLIPScore")
    reference_metrics = ("RefCLIPScore",)
    model, on_every_rank = "clip_model", True

    def evaluate(self, captions: CaptionSet) -> Result:
        features = clip_features(captions, self.settings)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        images = features.of_images(paths, "CLIP, images")
        groups = [captions.references[image_id] for image_id in captions.ids]
        texts = [*captions.predictions.values(), *(text for group in groups for text in group)]
        vectors, long = features.of_texts([PREFIX + text for text in texts], "CLIP, captions")
        if images is None:
            return Result({})
        count = len(paths)
        own = WEIGHT * cosines(vectors[:count], images)
        ends = np.cumsum([len(group) for group in groups])
        human = np.split(vectors[count:], ends[:-1])
        nearest = [
            (group.astype(float) @ v).max()
            for group, v in zip(human, vectors[:count].astype(float))
        ]
        both = harmonic_mean(own, np.clip(nearest, 0, None))
        values = {"CLIPScore": (100 * own).tolist(), "RefCLIPScore": (100 * both).tolist()}
        return Result(
            {name: mean(each) for name, each in values.items()},
            values,
            {"clip_model": features.clip.name, "clipscore_truncated": sum(long[:count])},
        )


def cosines(captions: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return max(cos, 0) of each pair of unit vectors; (N, D) each to (N,), in float64."""
    return np.clip((captions.astype(float) * images).sum(1), 0, None)


def harmonic_mean(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return 2ab / (a + b), 0 where both are."""
    total = first + second
    return 2 * first * second / np.where(total > 0, total, 1)
