"""Measures self-retrieval: whether CLIP finds the image of a caption in a pool of images."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np

from captioning.files import rows
from captioning.files.cache import local
from captioning.files.images import images_in
from captioning.files.tables import is_table
from captioning.metrics.base import CaptionSet, Metric, Scores, option
from captioning.metrics.clip_features import ClipEvaluator, read_arrays
from captioning.metrics.intervals import median_estimate
from captioning.runtime.errors import UserError, one_line

RANKS = (1, 5, 10)


class Retrieval(ClipEvaluator):
    """Ranks the images of a pool by their similarity to each caption.

    R@k: the share of captions whose own image is among the k most similar images, per cent.
    median_rank: the median rank of a caption's own image. Ties count against the caption.

    The pool consists of the captions' own images and the other images of the option `pool`. The
    captions are embedded without the prefix that CLIPScore uses.
    """

    metrics = (
        Metric(
            "R@1",
            "R@1",
            meaning="self-retrieval: captions whose own image is the nearest one, by CLIP",
            unit="%",
            report_title="CLIP R@1",
        ),
        Metric(
            "R@5",
            "R@5",
            meaning="self-retrieval: captions whose image is among the best five",
            unit="%",
            report_title="CLIP R@5",
        ),
        Metric("R@10", "R@10"),
        Metric("median_rank", "Med. Rank", direction="lower"),
    )
    options = {
        **ClipEvaluator.options,
        "pool": option(
            Optional[str], None, "more images for retrieval to search: a folder, a list or .npz"
        ),
    }

    def prepare(self) -> None:
        self.pool_files, self.pool_features = [], None
        pool, root = self.config.pool, self.settings.image_root
        if pool and pool.endswith(".npz"):
            self.pool_files, self.pool_features = read_features(local(pool))
        elif pool:
            is_split = self.settings.annotations and pool in ("train", "val", "test")
            paths = self.settings.annotations(pool) if is_split else [local(pool)]
            self.pool_files = [file for path in paths for file in read_pool(path, root)]
        if pool and not self.pool_files:
            raise UserError(f"pool: {pool} holds no images: give a folder or a list of images")

    def evaluate(self, captions: CaptionSet) -> Scores:
        clip = self.clip(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        files = list(dict.fromkeys(paths))
        images = self.image_features(clip, files, "CLIP, images")
        if self.pool_files:
            pool_features = self.pool_features
            if pool_features is None:
                pool_features = self.image_features(clip, self.pool_files, "CLIP, pool")
            if images.shape[1] != pool_features.shape[1]:
                raise UserError(
                    f"pool: {self.config.pool} has features of width {pool_features.shape[1]}, "
                    f"clip_model of {images.shape[1]}: make them with the same model"
                )
            images = _joined(files, images, self.pool_files, pool_features)
        index_of = {path: index for index, path in enumerate(files)}
        vectors = self.text_features(clip, captions.texts)
        pairs = zip(captions.texts, paths)
        ranks = [own_image_rank(vectors[text], images, index_of[path]) for text, path in pairs]
        where = self.config.pool or "the captions' own"
        scores = Scores.from_means(
            {f"R@{k}": [100.0 * (rank <= k) for rank in ranks] for k in RANKS},
            settings={
                "clip_model": clip.name,
                "pool": f"{len(images)} images ({where})",
                "retrieval_truncated": sum(map(clip.truncates, captions.texts)),
            },
        )
        scores.metrics["median_rank"] = median_estimate(ranks)
        scores.per_caption["rank"] = ranks
        return scores


def own_image_rank(caption: np.ndarray, images: np.ndarray, index: int) -> int:
    """Return the rank of a caption's own image among all images; 1 is best.

    - caption: a unit vector (D,)
    - images: unit vectors (P, D)
    - index: of the caption's own image

    Ties count against the own image. An image is tied with the own image if its similarity is lower
    by at most 1e-6, because float32 features of one image in different batches differ by about
    1e-7.
    """
    similarities = images @ caption  # (P,)
    return int((similarities >= similarities[index] - 1e-6).sum())


def read_pool(path: Path, root: Optional[Path] = None) -> list[Path]:
    """Return the image files of a folder, including its subfolders, or of a list.

    For lists, see `captioning.files.rows`. In a list of names only, file names are relative to the
    list's folder. In rows with fields, as in .csv and annotation files, they are relative to `root`
    (default: the list's folder). Repeated rows count once. Raises UserError.
    """
    if path.is_dir():
        return list(map(Path, images_in(str(path))))
    if not rows.is_list(path) or is_table(path):
        raise UserError(f"pool: {path} is not a folder, a list of images or an .npz file")
    listed = rows.read(path, needs=["image"])
    folder = root or path.parent
    paths = ((folder if len(row) > 1 else path.parent) / row["image"] for row in listed)
    return list(dict.fromkeys(paths))


def read_features(path: Path) -> tuple[list[Path], np.ndarray]:
    """Return the files and the unit vectors (P, D) of an `.npz` file. Raises UserError.

    The file has `features`, CLIP features (P, D), and `files`, P file names. The image files need
    not exist. Files of the feature cache have this format.
    """
    try:
        features, files = read_arrays(path, "features", "files")
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        if len(files) != len(unit):
            raise ValueError(f"{len(unit)} features of {len(files)} files")
    except Exception as error:  # numpy and zipfile raise many types
        raise UserError(f"pool: {path}: cannot be read: {one_line(error, None)}") from None
    return [Path(str(name)) for name in files], unit.astype(np.float32)


def _joined(
    files: Sequence[Path], features: np.ndarray, pool: Sequence[Path], pool_features: np.ndarray
) -> np.ndarray:
    """Return the features of the captions' own images, then those of other images of the pool.

    Two files of one name are the same image if their features are equal, up to the precision of
    different machines.
    """
    named = defaultdict(list)  # {file name: features of the captions' images}
    for path, vector in zip(files, features):
        named[path.name].append(vector)
    is_other = [
        all(vector @ own < 1 - 1e-5 for own in named[path.name])
        for path, vector in zip(pool, pool_features)
    ]
    return np.concatenate([features, pool_features[is_other]])
