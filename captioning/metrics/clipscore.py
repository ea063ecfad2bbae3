"""Computes CLIPScore: how well captions fit their images and references (Hessel et al. 2021)."""

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
    CLIP's 77 tokens, but its sentences seldom have to be truncated.
    """

    name = "clipscore"
    factor, truncated_setting = 2.5, "clipscore_truncated"

    def evaluate(self, captions: CaptionSet) -> Scores:
        features = self.features(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        images = features.of_images(paths, "CLIP, images")
        texts = list(captions.predictions.values())
        groups = [captions.references[image_id] for image_id in captions.ids]
        sentences = [SENTENCE_END.split(text.strip()) for text in texts]
        every_text = chain(texts, *groups, *sentences)
        vectors, long = features.of_texts(every_text, "CLIP, captions", PREFIX)
        if images is None:  # on ranks other than 0
            return Scores({})
        rows = []
        for text, group, parts, image in zip(texts, groups, sentences, images):
            caption, human, own = (
                np.array([vectors[text] for text in each]) for each in ([text], group, parts)
            )
            score = image_score(caption, image, self.factor)[0]
            nearest = image_score(human, caption[0], 1).max()
            # The harmonic mean, or 0 if both are 0.
            both = 2 * score * nearest / ((score + nearest) or 1)
            rows.append((score, both, image_score(own, image, self.factor).mean()))
        columns = 100 * np.array(rows).T
        truncated = sum(text in long for text in texts)
        return Scores.of_means(
            dict(zip(self.names, columns.tolist())),
            settings={"clip_model": features.clip.name, self.truncated_setting: truncated},
        )


def image_score(captions: np.ndarray, images: np.ndarray, factor: float) -> np.ndarray:
    """Return factor * max(cos(caption, image), 0) (N,).

    captions, images: unit vectors (N, D). images may also be one vector (D,) for all captions.
    """
    return factor * np.clip((captions.astype(float) * images).sum(1), 0, None)


class PacScore(ClipScore):
    """PAC-S and RefPAC-S (Sarto et al. 2023): CLIPScore with factor 2 and the paper's CLIP weights.

    The option `clip_model` has to name these weights. With other weights the score is not PAC-S.
    """

    name = "pacs"
    required = ("clip_model",)
    factor, truncated_setting = 2.0, "pacs_truncated"
