"""Computes CLIPScore: how well captions fit their images and references (Hessel et al. 2021)."""

import re
from functools import partial
from itertools import chain

import numpy as np

from captioning.metrics.base import CaptionSet, Metric, Scores
from captioning.metrics.clip_features import ClipEvaluator

PREFIX = "A photo depicts "
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

_reference_metric = partial(Metric, needs_references=True)


class ClipScore(ClipEvaluator):
    """CLIPScore: 100 * 2.5 * max(cos(caption, image), 0); equation 1 of the paper.

    RefCLIPScore: the harmonic mean of CLIPScore and 100 * max(cos(caption, reference), 0) with the
    closest reference; equation 2. All texts begin with "A photo depicts ".

    CLIPScore_sentences: the mean CLIPScore of a caption's sentences. A long caption is truncated to
    CLIP's 77 tokens, but its sentences seldom have to be truncated.
    """

    metrics = (
        Metric(
            "CLIPScore",
            "CLIPScore",
            meaning="how well caption and image agree, by CLIP",
        ),
        _reference_metric("RefCLIPScore", "RefCLIPScore"),
        Metric("CLIPScore_sentences", "CLIPScore Sent."),
    )
    factor, truncated_setting = 2.5, "clipscore_truncated"

    def evaluate(self, captions: CaptionSet) -> Scores:
        clip = self.clip(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        images = self.image_features(clip, paths, "CLIP, images")
        texts = captions.texts
        groups = [captions.references[image_id] for image_id in captions.ids]
        sentences = [SENTENCE_END.split(text.strip()) for text in texts]
        vector_of = self.text_features(clip, chain(texts, *groups, *sentences), PREFIX)

        def vectors_of(texts):
            return np.array([vector_of[text] for text in texts])

        rows = []
        for text, group, parts, image in zip(texts, groups, sentences, images):
            caption = vectors_of([text])
            score = image_score(caption, image, self.factor)[0]
            nearest = image_score(vectors_of(group), caption[0], 1).max()
            total = score + nearest
            harmonic_mean = 2 * score * nearest / total if total else 0.0
            of_sentences = image_score(vectors_of(parts), image, self.factor).mean()
            rows.append((score, harmonic_mean, of_sentences))
        columns = 100 * np.array(rows).T
        truncated = sum(clip.truncates(PREFIX + text) for text in texts)
        return Scores.from_means(
            dict(zip(self.metric_names, columns.tolist())),
            settings={"clip_model": clip.name, self.truncated_setting: truncated},
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

    metrics = (
        Metric("PAC-S", "PAC-S", meaning="CLIPScore with CLIP weights tuned for captions"),
        _reference_metric("RefPAC-S", "RefPAC-S"),
    )
    required = ("clip_model",)
    factor, truncated_setting = 2.0, "pacs_truncated"
