"""CLIPScore: how well captions fit their images and references (Hessel et al. 2021)."""

import re
from itertools import chain

import numpy as np

from captioning.metrics.clip_features import ClipEvaluator
from captioning.metrics.evaluator import CaptionSet, Scores

PREFIX = "A photo depicts "
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class ClipScore(ClipEvaluator):
    """CLIPScore: 100 * 2.5 * max(cos(caption, image), 0); equation 1 of the paper.

    RefCLIPScore: the harmonic mean of CLIPScore and 100 * max(cos(caption, reference), 0) with the
    closest reference; equation 2. All texts begin with "A photo depicts ".

    CLIPScore_sentences: the mean CLIPScore of a caption's sentences. A long caption is truncated to
    CLIP's 77 tokens; its sentences seldom are.
    """

    name = "clipscore"
    factor, truncated_setting = 2.5, "clipscore_truncated"

    def evaluate(self, captions: CaptionSet) -> Scores:
        features = self.features(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        images = features.of_images(paths, "CLIP, images")
        groups = [captions.references[image_id] for image_id in captions.ids]
        sentences = [SENTENCE_END.split(text.strip()) for text in captions.predictions.values()]
        texts = list(chain(captions.predictions.values(), *groups, *sentences))
        vectors, long = features.of_texts([PREFIX + text for text in texts], "CLIP, captions")
        if images is None:
            return Scores({})
        count = len(paths)
        candidates = vectors[:count].astype(float)
        by_image = image_score(candidates, images, self.factor)
        human, parts = np.split(vectors[count:], [sum(map(len, groups))])
        human, parts = (
            np.split(found, np.cumsum([len(each) for each in of])[:-1])
            for found, of in ((human, groups), (parts, sentences))
        )
        nearest = [(group.astype(float) @ v).max() for group, v in zip(human, candidates)]
        nearest = np.clip(nearest, 0, None)
        total = by_image + nearest
        # The harmonic mean, or 0 if both are 0.
        with_references = 2 * by_image * nearest / np.where(total > 0, total, 1)
        by_sentence = [image_score(part, v, self.factor).mean() for part, v in zip(parts, images)]
        columns = (by_image, with_references, np.array(by_sentence))
        values = {name: (100 * column).tolist() for name, column in zip(self.names, columns)}
        settings = {"clip_model": features.clip.name, self.truncated_setting: sum(long[:count])}
        return Scores.of_means(values, settings=settings)


def image_score(captions: np.ndarray, images: np.ndarray, factor: float) -> np.ndarray:
    """Return factor * max(cos(caption, image), 0) (N,).

    captions, images: unit vectors (N, D), or images (D,): the one image of all captions.
    """
    return factor * np.clip((captions.astype(float) * images).sum(1), 0, None)


class PacScore(ClipScore):
    """PAC-S and RefPAC-S (Sarto et al. 2023): CLIPScore with factor 2 and the paper's CLIP weights.

    `clip_model` has to name these weights. With other weights it is not PAC-S.
    """

    name = "pacs"
    required = ("clip_model",)
    factor, truncated_setting = 2.0, "pacs_truncated"
