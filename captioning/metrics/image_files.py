"""Which file each image id stands for, and the images among which a caption has to find its own."""

import filecmp
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from captioning.data.caption_files import ImageId, ids_by_name
from captioning.files.images import LISTS, images_in, read_list
from captioning.metrics.clip_features import NO_ARRAYS, read_arrays
from captioning.runtime.errors import UserError


def find_images(source: Path, references: Path, ids: Iterable[ImageId]) -> dict[ImageId, Path]:
    """Return the image file of each id.

    source: a folder, or a JSON file {image id: image file} or another list with ids (see
    `captioning.files.images.read_list`), relative to its own folder. In a folder the files are
    those that `references` names, if it is an annotation file or COCO's with file_name; else those
    whose name is the id, or ends in its digits as COCO's do (COCO_val2014_000000000042.jpg is 42),
    in folders within as well. "42" and 42 are the same image. Raises UserError for the first id
    without a file, or with several.
    """
    if source.is_dir():
        named = {i: source / name for name, i in ids_by_name(references).items()}
    else:
        named = {item.image_id: source.parent / item.image for item in read_list(source)}
        if not named or None in named:
            expected = "expected {image id: image file}, or give a folder of images"
            raise UserError(f"{source}: {expected}")
    named = {str(i): path for i, path in named.items() if path.is_file()}
    in_folder = None
    found = {}
    for image_id in ids:
        path = named.get(str(image_id))
        if path is None and source.is_dir():
            in_folder = _by_name(source) if in_folder is None else in_folder
            paths = in_folder.get(str(image_id), [])
            if len(paths) > 1:
                raise UserError(
                    f"image_id {image_id!r} may be {paths[0]} or {paths[1]}: give a folder that "
                    "has one of them, or a JSON file {image id: image file}"
                )
            path = paths[0] if paths else None
        if path is None:
            raise UserError(f"image_id {image_id!r}: found no image file of it in {source}")
        found[image_id] = path
    return found


def _by_name(folder):
    """Return {id: image files} for the ids that file names can stand for."""
    files: dict[str, list[Path]] = {}
    for path in map(Path, images_in(str(folder))):
        keys = {path.stem, path.name, path.relative_to(folder).as_posix()}
        digits = re.search(r"[0-9]+\Z", path.stem)
        if digits:
            keys.add(str(int(digits.group())))
        for key in keys:
            files.setdefault(key, []).append(path)
    return files


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
    # By name: paths, or features, of which those of own images are not known.
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


def _same(content, other):
    if isinstance(content, np.ndarray):
        return other is None or np.allclose(content, other, atol=1e-5)
    try:
        return filecmp.cmp(content, other, shallow=False)
    except OSError as error:
        raise UserError(f"pool: {error.filename}: no such image: {error.strerror}") from None
