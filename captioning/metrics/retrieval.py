"""Self-retrieval by CLIP: whether a caption finds its own image among many images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np
from pydantic import Field

from captioning.data import annotation_paths
from captioning.files.cache import local
from captioning.metrics.bootstrap import median
from captioning.metrics.clip import ClipOptions
from captioning.metrics.clip_features import ClipEvaluator
from captioning.metrics.evaluator import CaptionSet, Scores
from captioning.metrics.image_pool import new_images, read_pool
from captioning.runtime.errors import UserError

RANKS = (1, 5, 10)


class RetrievalOptions(ClipOptions):
    pool: Annotated[Optional[str], "scoring"] = Field(
        None, description="more images for retrieval to search: a folder, a list or .npz"
    )

    @classmethod
    def from_config(cls, config: Any) -> dict[str, Any]:
        """Like `Options.from_config`. `pool` may be a split: its annotation file is then used."""
        values = super().from_config(config)
        pool = given = values["pool"]
        if pool in ("train", "val", "test"):
            if config.split:
                raise UserError(f"pool: {pool} is a part of train_file; name a list of images")
            pool, *rest = annotation_paths(config, pool)
            if rest:
                raise UserError(
                    f"pool: {given} has {1 + len(rest)} annotation files; give a list of its "
                    "images, one per line"
                )
        return {**values, "pool": pool and str(local(pool))}


class Retrieval(ClipEvaluator):
    """R@k: captions whose own image is among the k most similar images of the pool, per cent.

    median_rank: the median rank of the own image. The captions have no prefix, unlike CLIPScore's.
    The pool consists of the captions' own images and the images of the option `pool`, each once.
    Ties count against the caption.
    """

    name = "retrieval"
    Options = RetrievalOptions

    def prepare(self) -> None:
        self.pool = None
        if self.options.pool:
            self.pool = read_pool(Path(self.options.pool), self.settings.image_root)

    def evaluate(self, captions: CaptionSet) -> Scores:
        features = self.features(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        files = list(dict.fromkeys(paths))
        images = features.of_images(files, "CLIP, images")
        pool_features = self.pool and self.pool.features
        if self.pool and pool_features is None:
            pool_features = features.of_images(self.pool.files, "CLIP, pool")
        texts = list(captions.predictions.values())
        vectors, long = features.of_texts(texts, "CLIP, captions")
        if images is None:
            return Scores({})
        if self.pool:
            if images.shape[1] != pool_features.shape[1]:
                raise UserError(
                    f"pool: {self.options.pool} has features of width {pool_features.shape[1]}, "
                    f"clip_model of {images.shape[1]}: make them with the same model"
                )
            images = np.concatenate([images, pool_features[new_images(self.pool, files)]])
        index_of = {path: index for index, path in enumerate(files)}
        rows = np.array([vectors[text] for text in texts])
        found = ranks(rows, images, [index_of[path] for path in paths])
        hits = {f"R@{k}": (100.0 * (found <= k)).tolist() for k in RANKS}
        where = self.options.pool or "the captions' own"
        scores = Scores.of_means(
            hits,
            settings={
                "clip_model": features.clip.name,
                "pool": f"{len(images)} images ({where})",
                "retrieval_truncated": sum(text in long for text in texts),
            },
        )
        scores.metrics["median_rank"] = median(found)
        scores.per_image["rank"] = found.tolist()
        return scores


def ranks(
    captions: np.ndarray, images: np.ndarray, own: Sequence[int], at_once: int = 2**24
) -> np.ndarray:
    """Return the rank (N,) of each caption's own image among all images; 1 is best.

    captions: unit vectors (N, D); images: unit vectors (P, D); own: the indices of the N captions'
    images; at_once: the most similarities in memory. Ties count against the own image. An image is
    tied if its similarity is lower by at most 1e-6, because float32 features of one image in
    different batches differ by about 1e-7.
    """
    own = np.asarray(own)
    limits = (captions * images[own]).sum(1) - 1e-6  # (N,)
    before = np.zeros(len(captions), dtype=int)
    width = min(len(images), 8192)
    height = max(1, at_once // width)
    for top in range(0, len(captions), height):
        rows = slice(top, top + height)
        for left in range(0, len(images), width):
            near = captions[rows] @ images[left : left + width].T >= limits[rows, None]
            at = own[rows] - left
            inside = np.flatnonzero((at >= 0) & (at < near.shape[1]))
            near[inside, at[inside]] = False
            before[rows] += near.sum(1)
    return before + 1
