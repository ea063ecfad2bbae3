"""How well captions tell their images from others, by CLIP: a caption retrieves its own image."""

from collections.abc import Sequence

import numpy as np

from captioning.metrics.bootstrap import mean, median
from captioning.metrics.clip_features import ClipEvaluator, clip_features
from captioning.metrics.evaluator import CaptionSet, Result, Settings
from captioning.metrics.image_files import others, read_pool
from captioning.runtime.errors import UserError

RANKS = (1, 5, 10)


class Retrieval(ClipEvaluator):
    """R@k: captions whose own image is among the k most similar of the pool, per cent.

    median_rank: the median place of the own image. The captions have no prefix. The pool is made of
    the captions' own images and of those that `pool` names, each once. A similarity that equals the
    own image's counts against the caption.
    """

    names = (*(f"R@{k}" for k in RANKS), "median_rank")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.pool = settings.pool and read_pool(settings.pool, settings.pool_root)

    def evaluate(self, captions: CaptionSet) -> Result:
        features = clip_features(captions, self.settings)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        files = list(dict.fromkeys(paths))
        images = features.of_images(files, "CLIP, images")
        further = self.pool and self.pool.features
        if self.pool and further is None:
            further = features.of_images(self.pool.files, "CLIP, pool")
        texts = list(captions.predictions.values())
        vectors, long = features.of_texts(texts, "CLIP, captions")
        if images is None:
            return Result({})
        if self.pool:
            if images.shape[1] != further.shape[1]:
                raise UserError(
                    f"pool: {self.settings.pool} has features of width {further.shape[1]}, "
                    f"clip_model of {images.shape[1]}: make them with the same model"
                )
            images = np.concatenate([images, further[others(self.pool, files)]])
        number = {path: index for index, path in enumerate(files)}
        found = ranks(vectors, images, [number[path] for path in paths])
        hits = {f"R@{k}": (100.0 * (found <= k)).tolist() for k in RANKS}
        where = "the captions' own" if self.pool is None else str(self.settings.pool)
        return Result(
            {**{name: mean(each) for name, each in hits.items()}, "median_rank": median(found)},
            {**hits, "rank": found.tolist()},
            {
                "clip_model": features.clip.name,
                "pool": f"{len(images)} images ({where})",
                "retrieval_truncated": sum(long),
            },
        )


def ranks(
    captions: np.ndarray, images: np.ndarray, own: Sequence[int], at_once: int = 2**24
) -> np.ndarray:
    """Return (N,), the place of each caption's own image among all, 1 being the best.

    captions: (N, D) and images: (P, D), unit vectors; own: N indices of images; at_once: the most
    similarities held in memory. An image that is as similar counts as before the own one. So does
    one less similar by at most 1e-6: float32 features of the same image, computed in another batch,
    differ by about a tenth of it.
    """
    own = np.asarray(own)
    limits = (captions * images[own]).sum(1) - 1e-6  # (N,)
    before = np.zeros(len(captions), dtype=int)
    width = min(len(images), 8192)
    height = max(1, at_once // width)
    for top in range(0, len(captions), height):
        rows = slice(top, top + height)
        for left in range(0, len(images), width):
            columns = slice(left, left + width)
            near = captions[rows] @ images[columns].T >= limits[rows, None]
            at = own[rows] - left
            inside = np.flatnonzero((at >= 0) & (at < near.shape[1]))
            near[inside, at[inside]] = False
            before[rows] += near.sum(1)
    return before + 1
