"""The pool of images for retrieval: each caption has to find its own image in the pool."""

import filecmp
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Optional, Union

import numpy as np

from captioning.files.images import LISTS, images_in, read_list
from captioning.metrics.clip_features import READ_ERRORS, read_arrays
from captioning.runtime.errors import UserError, one_line


class Pool(NamedTuple):
    """Images in addition to the captions' own. features: CLIP features (P, D), if known."""

    files: list[Path]
    features: Optional[np.ndarray] = None


def read_pool(path: Path, root: Optional[Path] = None) -> Pool:
    """Return the images of a pool. Raises UserError. A pool is one of:

    - a folder and its subfolders
    - a list, see `captioning.files.images.read_list`. File names on their own are
      relative to the list's folder. File names in rows, as in .csv and annotation files, are
      relative to `root` (default: the list's folder). An image with several rows counts once
    - an `.npz` file with `features`, CLIP features (P, D), and `files`, P file names. The files
      need not exist. Files of the feature cache have this format
    """
    if path.is_dir():
        found = map(Path, images_in(str(path)))
        pool = Pool([image for image in found if image.is_file()])  # leaves out broken links
    elif path.suffix == ".npz":
        pool = _read_features(path)
    elif path.suffix in LISTS:
        listed = dict.fromkeys(read_list(path))
        folders = {True: root or path.parent, False: path.parent}
        pool = Pool([folders[item.in_row] / item.image for item in listed])
    else:
        raise UserError(f"pool: {path} is not a folder and not a {', '.join(LISTS)} or .npz file")
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

    Files with the same name are the same image if their bytes are equal. In a pool of features, an
    image with the name of an own image is that image. Two images with the same name are the same
    if their features are equal.
    """
    # {file name: the different images of this name}, each as its path or, in a pool of features, as
    # its features. None stands for an own image, whose features are not known here.
    named: defaultdict[str, list] = defaultdict(list)
    for path in own:
        named[path.name].append(path if pool.features is None else None)
    indices = []
    for index, path in enumerate(pool.files):
        content = path if pool.features is None else pool.features[index]
        if not any(_same(content, other) for other in named[path.name]):
            named[path.name].append(content)
            indices.append(index)
    return indices


def _same(content: Union[Path, np.ndarray], other: Union[Path, np.ndarray, None]) -> bool:
    """Whether two images of one file name are the same, see `new_images`. Raises UserError."""
    if isinstance(content, np.ndarray):
        return other is None or np.allclose(content, other, atol=1e-5)
    try:
        return filecmp.cmp(content, other, shallow=False)
    except OSError as error:
        raise UserError(f"pool: {error.filename}: no such image: {error.strerror}") from None
