"""CLIPScore: how well captions fit their images and references (Hessel et al. 2021)."""

import numpy as np

from captioning.metrics.clip_features import ClipEvaluator
from captioning.metrics.evaluator import CaptionSet, Scores

PREFIX = "A photo depicts "


class ClipScore(ClipEvaluator):
    """CLIPScore: 100 * 2.5 * max(cos(caption, image), 0); equation 1 of the paper.

    RefCLIPScore: the harmonic mean of CLIPScore and 100 * max(cos(caption, reference), 0) with the
    closest reference; equation 2. All texts begin with "A photo depicts ".
    """

    name = "clipscore"
    weight, truncated = 2.5, "clipscore_truncated"

    def evaluate(self, captions: CaptionSet) -> Scores:
        features = self.features(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        images = features.of_images(paths, "CLIP, images")
        groups = [captions.references[image_id] for image_id in captions.ids]
        texts = [*captions.predictions.values(), *(text for group in groups for text in group)]
        vectors, long = features.of_texts([PREFIX + text for text in texts], "CLIP, captions")
        if images is None:
            return Scores({})
        count = len(paths)
        candidates = vectors[:count].astype(float)
        own = image_score(candidates, images, self.weight)
        human = np.split(vectors[count:], np.cumsum([len(group) for group in groups])[:-1])
        nearest = [(group.astype(float) @ v).max() for group, v in zip(human, candidates)]
        nearest = np.clip(nearest, 0, None)
        total = own + nearest
        both = 2 * own * nearest / np.where(total > 0, total, 1)  # harmonic mean; 0 if both are 0
        values = dict(zip(self.names, [(100 * own).tolist(), (100 * both).tolist()]))
        settings = {"clip_model": features.clip.name, self.truncated: sum(long[:count])}
        return Scores.of_means(values, settings=settings)


def image_score(captions: np.ndarray, images: np.ndarray, weight: float) -> np.ndarray:
    """weight * max(cos, 0) (N,) of unit vectors (N, D) of captions and of their images."""
    return weight * np.clip((captions.astype(float) * images).sum(1), 0, None)


class PacScore(ClipScore):
    """PAC-S and RefPAC-S (Sarto et al. 2023): CLIPScore with factor 2 and the paper's CLIP weights.

    `clip_model` has to name these weights. With OpenAI's weights it would be another metric.
    """

    name = "pacs"
    required = ("clip_model",)
    weight, truncated = 2.0, "pacs_truncated"
