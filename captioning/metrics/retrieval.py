"""Measures self-retrieval: whether CLIP finds the image of a caption in a pool of images."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from captioning.files import rows
from captioning.files.cache import local
from captioning.files.images import images_in
from captioning.files.tables import is_table
from captioning.metrics.base import CaptionSet, Metric, Scores, option
from captioning.metrics.clip import CLIP_OPTIONS
from captioning.metrics.clip_features import READ_ERRORS, ClipEvaluator, read_arrays
from captioning.metrics.intervals import median_estimate
from captioning.runtime.errors import UserError, one_line

RANKS = (1, 5, 10)


class Retrieval(ClipEvaluator):
    """Ranks the images of a pool by their similarity to each caption.

    R@k: the share of captions whose own image is among the k most similar images, per cent.
    median_rank: the median rank of a caption's own image. Ties count against the caption.

    The pool consists of the captions' own images and the images of the option `pool`, without
    duplicates. The captions are embedded without the prefix that CLIPScore uses.
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
        **CLIP_OPTIONS,
        "pool": option(
            Optional[str], None, "more images for retrieval to search: a folder, a list or .npz"
        ),
    }

    def prepare(self) -> None:
        self.pool, self.pool_name = None, self.config.pool
        if self.settings.annotations and self.pool_name in ("train", "val", "test"):
            paths = self.settings.annotations(self.pool_name)
            if len(paths) != 1:
                raise UserError(
                    f"pool: {self.pool_name} has {len(paths)} annotation files of its own; give a "
                    "list of its images, one per line"
                )
            self.pool_name = str(paths[0])
        if self.pool_name:
            self.pool = read_pool(local(self.pool_name), self.settings.image_root)

    def evaluate(self, captions: CaptionSet) -> Scores:
        features = self.features(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        files = list(dict.fromkeys(paths))
        images = features.of_images(files, "CLIP, images")
        if self.pool:
            of_pool = self.pool.features
            if of_pool is None:
                of_pool = features.of_images(self.pool.files, "CLIP, pool")
            if images.shape[1] != of_pool.shape[1]:
                raise UserError(
                    f"pool: {self.pool_name} has features of width {of_pool.shape[1]}, "
                    f"clip_model of {images.shape[1]}: make them with the same model"
                )
            images = _joined(files, images, self.pool.files, of_pool)
        index_of = {path: index for index, path in enumerate(files)}
        vectors = features.of_texts(captions.texts)
        captions_features = np.array([vectors[text] for text in captions.texts])
        ranks = own_image_ranks(captions_features, images, [index_of[path] for path in paths])
        where = self.pool_name or "the captions' own"
        scores = Scores.from_means(
            {f"R@{k}": np.where(ranks <= k, 100.0, 0.0).tolist() for k in RANKS},
            settings={
                "clip_model": features.clip.name,
                "pool": f"{len(images)} images ({where})",
                "retrieval_truncated": sum(map(features.clip.truncates, captions.texts)),
            },
        )
        scores.metrics["median_rank"] = median_estimate(ranks)
        scores.per_caption["rank"] = ranks.tolist()
        return scores


def own_image_ranks(
    captions: np.ndarray, images: np.ndarray, own: Sequence[int], at_once: int = 2**24
) -> np.ndarray:
    """Return the rank (N,) of each caption's own image among all images; 1 is best.

    - captions: unit vectors (N, D)
    - images: unit vectors (P, D)
    - own: (N,), the index in `images` of each caption's own image
    - at_once: the maximum number of similarities in memory, but at least P

    Ties count against the own image. An image is tied with the own image if its similarity is lower
    by at most 1e-6, because float32 features of one image in different batches differ by about
    1e-7.
    """
    own = np.asarray(own)
    limits = (captions * images[own]).sum(1) - 1e-6  # (N,)
    height = max(1, at_once // len(images))
    found = []
    for top in range(0, len(captions), height):
        rows = slice(top, top + height)
        near = captions[rows] @ images.T >= limits[rows, None]
        near[np.arange(len(near)), own[rows]] = False
        found.append(1 + near.sum(1))
    return np.concatenate(found)


class Pool(NamedTuple):
    """Images to search in addition to the captions' own images.

    features: CLIP features (P, D) of the P files; None if they have to be computed.
    """

    files: list[Path]
    features: Optional[np.ndarray] = None


def read_pool(path: Path, root: Optional[Path] = None) -> Pool:
    """Return the images of a pool. Raises UserError. `path` is one of:

    - a folder; its subfolders are included
    - a list, see `captioning.files.rows`. In a list of names only, file names are
      relative to the list's folder. In rows with fields, as in .csv and annotation files, they are
      relative to `root` (default: the list's folder). Repeated rows count once
    - an `.npz` file with `features`, CLIP features (P, D), and `files`, P file names. The files
      need not exist. Files of the feature cache have this format
    """
    if path.is_dir():
        found = map(Path, images_in(str(path)))
        pool = Pool([image for image in found if image.is_file()])  # leaves out broken links
    elif path.suffix == ".npz":
        pool = _read_features(path)
    elif rows.is_list(path) and not is_table(path):
        row_folder = root or path.parent
        listed = rows.read(path, needs=["image"])
        files = ((row_folder if len(row) > 1 else path.parent) / row["image"] for row in listed)
        pool = Pool(list(dict.fromkeys(files)))
    else:
        raise UserError(f"pool: {path} is not a folder, a list of images or an .npz file")
    if not pool.files:
        raise UserError(f"pool: {path} holds no images")
    return pool


def _read_features(path: Path) -> Pool:
    """Return the pool of an `.npz` file. Raises UserError."""
    try:
        features, files = read_arrays(path, "features", "files")
    except READ_ERRORS as error:
        raise UserError(f"pool: {path}: cannot be read: {one_line(error)}") from None
    if (
        features.ndim != 2
        or not np.issubdtype(features.dtype, np.floating)
        or files.shape != features.shape[:1]
        or not (np.isfinite(features).all() and features.any(axis=1).all())
    ):
        raise UserError(
            f"pool: {path}: expected features (P, D), numbers that are finite and not all 0, and "
            f"files (P): found {features.dtype} {features.shape} and {files.shape}"
        )
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return Pool([Path(str(name)) for name in files], (features / norms).astype(np.float32))


def _joined(
    files: Sequence[Path], features: np.ndarray, pool: Sequence[Path], of_pool: np.ndarray
) -> np.ndarray:
    """Return the features of the captions' own images, then those of other images of the pool.

    Two files of one name are the same image if their features are equal, up to the precision of
    different machines.
    """
    kept, named = list(features), defaultdict(list)  # {file name: features of its images}
    for path, vector in zip(files, features):
        named[path.name].append(vector)
    for path, vector in zip(pool, of_pool):
        if all(vector @ other < 1 - 1e-5 for other in named[path.name]):
            kept.append(vector)
            named[path.name].append(vector)
    return np.array(kept)
