"""Measures self-retrieval: whether CLIP finds the image of a caption in a pool of images."""

import filecmp
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional, Union

import numpy as np
from pydantic import Field

from captioning.data.sources import annotation_paths
from captioning.files import rows
from captioning.files.cache import local
from captioning.files.images import images_in
from captioning.files.tables import is_table
from captioning.metrics.bootstrap import median_estimate
from captioning.metrics.clip import ClipOptions
from captioning.metrics.clip_features import READ_ERRORS, ClipEvaluator, read_arrays
from captioning.metrics.evaluator import CaptionSet, Scores
from captioning.runtime.errors import UserError, one_line

RANKS = (1, 5, 10)


class RetrievalOptions(ClipOptions):
    pool: Annotated[Optional[str], "scoring"] = Field(
        None, description="more images for retrieval to search: a folder, a list or .npz"
    )

    @classmethod
    def from_config(cls, config: Any) -> dict[str, Any]:
        """Like `Options.from_config`. A `pool` that names a split becomes its annotation file."""
        values = super().from_config(config)
        pool = values["pool"]
        if not pool:
            return values
        if pool in ("train", "val", "test"):
            if config.split:
                raise UserError(f"pool: {pool} is a part of train_file; name a list of images")
            paths = annotation_paths(config, pool)
            if len(paths) > 1:
                raise UserError(
                    f"pool: {pool} has {len(paths)} annotation files; give a list of its images, "
                    "one per line"
                )
            [pool] = paths
        return {**values, "pool": str(pool)}


class Retrieval(ClipEvaluator):
    """Ranks the images of a pool by their similarity to each caption.

    R@k: the share of captions whose own image is among the k most similar images, per cent.
    median_rank: the median rank of a caption's own image. Ties count against the caption.

    The pool consists of the captions' own images and the images of the option `pool`, without
    duplicates. The captions are embedded without the prefix that CLIPScore uses.
    """

    name = "retrieval"
    Options = RetrievalOptions

    def prepare(self) -> None:
        self.pool = None
        if self.options.pool:
            self.pool = read_pool(local(self.options.pool), self.settings.image_root)

    def evaluate(self, captions: CaptionSet) -> Scores:
        features = self.features(captions)
        paths = [self.settings.images[image_id] for image_id in captions.ids]
        files = list(dict.fromkeys(paths))
        images = features.of_images(files, "CLIP, images")
        if self.pool:
            pool_features = self.pool.features
            if pool_features is None:
                pool_features = features.of_images(self.pool.files, "CLIP, pool")
        texts = captions.texts
        vectors, truncated = features.of_texts(texts, "CLIP, captions")
        if images is None:  # on ranks other than 0
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
        ranks = own_image_ranks(rows, images, [index_of[path] for path in paths])
        hits = {f"R@{k}": np.where(ranks <= k, 100.0, 0.0).tolist() for k in RANKS}
        where = self.options.pool or "the captions' own"
        scores = Scores.from_means(
            hits,
            settings={
                "clip_model": features.clip.name,
                "pool": f"{len(images)} images ({where})",
                "retrieval_truncated": len([text for text in texts if text in truncated]),
            },
        )
        scores.metrics["median_rank"] = median_estimate(ranks)
        scores.per_caption["rank"] = ranks.tolist()
        return scores


def own_image_ranks(
    captions: np.ndarray, images: np.ndarray, own: Sequence[int], at_once: int = 2**24
) -> np.ndarray:
    """Return the rank (N,) of each caption's own image among all images; 1 is best.

    captions: unit vectors (N, D); images: unit vectors (P, D); own: (N,), the index in `images` of
    each caption's own image; at_once: the maximum number of similarities in memory, but at least P.

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


def new_images(pool: Pool, own: Iterable[Path]) -> list[int]:
    """Return the indices of the pool's images that are not among `own`, each image once.

    own: the files of the captions' own images. Two files with the same name are the same image if
    their bytes are equal. A pool of features has no files to compare. There, an image with the name
    of an own image counts as that own image. Two other images with the same name are the same image
    if their features are equal.
    """
    # {file name: the different images with this name}. An image is represented by its path or, in a
    # pool of features, by its features. None represents an own image: its features are not known.
    named = defaultdict(list)
    for path in own:
        named[path.name].append(path if pool.features is None else None)
    indices = []
    for index, path in enumerate(pool.files):
        content = path if pool.features is None else pool.features[index]
        if not any(_is_same_image(content, other) for other in named[path.name]):
            named[path.name].append(content)
            indices.append(index)
    return indices


def _is_same_image(content: Union[Path, np.ndarray], other: Union[Path, np.ndarray, None]) -> bool:
    """Return whether two images with one file name are the same image, see `new_images`.

    Raises UserError if a file cannot be read.
    """
    if isinstance(content, np.ndarray):
        return other is None or np.allclose(content, other, atol=1e-5)
    try:
        return filecmp.cmp(content, other, shallow=False)
    except OSError as error:
        raise UserError(f"pool: {error.filename}: no such image: {error.strerror}") from None
