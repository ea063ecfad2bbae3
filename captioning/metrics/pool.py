"""The images among which a caption has to find its own."""

import filecmp
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from captioning.files.images import LISTS, images_in, read_list
from captioning.metrics.feature_files import NO_ARRAYS, read_arrays
from captioning.runtime.errors import UserError


class Pool(NamedTuple):
    """Images beside the captions' own. features: (P, D) of the files, if they are known."""

    files: list[Path]
    features: Optional[np.ndarray] = None


def read_pool(path: Path, root: Optional[Path] = None) -> Pool:
    """Return the images of a pool that is one of

    - a folder, with those in folders within;
    - a list, see `captioning.files.images.read_list`: image files alone are relative to its folder;
      those in rows, as of a split's annotation file, are relative to `root` (without one, to its
      folder), and one that is named once for each of its captions counts once;
    - an `.npz` file of `features`, (P, D) of CLIP, and `files`, P names of files, that need not be
      there. What the cache keeps is such a file.

    Raises UserError.
    """
    if path.is_dir():
        found = map(Path, images_in(str(path)))
        pool = Pool([image for image in found if image.is_file()])  # no link to nowhere
    elif path.suffix == ".npz":
        pool = _read_features(path)
    elif path.suffix in LISTS:
        listed = dict.fromkeys(read_list(path))
        starts = {True: root or path.parent, False: path.parent}
        pool = Pool([starts[item.in_row] / item.image for item in listed])
    else:
        raise UserError(f"pool: {path} is no folder and no {', '.join(LISTS)} or .npz file")
    if not pool.files:
        raise UserError(f"pool: {path} holds no images")
    return pool


def _read_features(path):
    try:
        features, files = read_arrays(path, "features", "files")
    except FileNotFoundError:
        raise UserError(f"pool: {path}: no such file") from None
    except KeyError as error:
        raise UserError(f"pool: {path}: {error.args[0]}: expected features and files") from None
    except NO_ARRAYS as error:
        raise UserError(f"pool: {path}: cannot be read: {error}") from None
    if not np.issubdtype(features.dtype, np.floating):
        raise UserError(f"pool: {path}: features are {features.dtype}: expected numbers")
    if features.ndim != 2 or files.shape != features.shape[:1]:
        raise UserError(
            f"pool: {path}: features {features.shape} and files {files.shape} do not go together: "
            "expected one row of features a file"
        )
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise UserError(f"pool: {path}: the features of some image are 0 or not finite")
    return Pool([Path(str(name)) for name in files], (features / norms).astype(np.float32))


def others(pool: Pool, own: Iterable[Path]) -> list[int]:
    """Return the indices of the pool's images that are not among `own`, each image once.

    Files of one name are the same image if their bytes are equal. Where there are features alone,
    one that has the name of an own image is taken for it, and two of one name are the same image if
    their features are.
    """
    if pool.features is None:
        return _new_files(pool.files, own)
    names = {path.name for path in own}
    seen: dict[str, list[np.ndarray]] = {}
    indices = []
    for index, (path, vector) in enumerate(zip(pool.files, pool.features)):
        alike = seen.setdefault(path.name, [])
        if path.name in names or any(np.allclose(vector, other, atol=1e-5) for other in alike):
            continue
        alike.append(vector)
        indices.append(index)
    return indices


def _new_files(files, own):
    seen: dict[str, list[Path]] = {}
    for path in own:
        seen.setdefault(path.name, []).append(path)
    indices = []
    for index, path in enumerate(files):
        alike = seen.setdefault(path.name, [])
        if not any(_same(path, other) for other in alike):
            alike.append(path)
            indices.append(index)
    return indices


def _same(path, other):
    try:
        return filecmp.cmp(path, other, shallow=False)
    except OSError as error:
        raise UserError(f"pool: {error.filename}: no such image: {error.strerror}") from None
