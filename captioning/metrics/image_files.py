"""Finds the image file of each image id."""

import re
from collections.abc import Collection
from pathlib import Path

from captioning.data.annotations import read_samples
from captioning.data.caption_files import ImageId, ids_by_name, of_images
from captioning.files import rows
from captioning.files.images import images_in
from captioning.files.tables import is_row, is_table
from captioning.runtime.errors import UserError


def find_images(source: Path, references: Path, ids: Collection[ImageId]) -> dict[ImageId, Path]:
    """Return {image id: image file} for all of `ids`.

    source: a folder, a JSON file {image id: image file}, a Parquet or Arrow data set that contains
    the images, or another list with ids (see `captioning.files.rows`). Paths in a JSON file or list
    are relative to its folder.

    For a folder, the file names are read from `references`, if this is an annotation file or has
    COCO's format with file_name. For other ids, the folder and its subfolders are searched: a file
    belongs to an id if its name is the id or ends in the digits of the id, as in COCO
    (COCO_val2014_000000000042.jpg belongs to 42).

    The ids "42" and 42 name the same image, and "42#1" names a caption of this image. Raises
    UserError for the first id without a file, or with several files.
    """
    if is_table(source):
        named = {sample.image_id: Path(sample.image) for sample in read_samples(source)}
    elif source.is_dir():
        named = {i: source / name for name, i in ids_by_name(references).items()}
    else:
        entries = rows.read(source, needs=["image"])
        named = {row.get("image_id"): source.parent / row["image"] for row in entries}
        if not named or None in named:
            expected = "expected {image id: image file}, or give a folder of images"
            raise UserError(f"{source}: {expected}")
    files = {str(i): [path] for i, path in named.items() if path.is_file() or is_row(path)}
    if source.is_dir() and not all(of_images(ids, files).values()):
        files = {**_files_by_id(source), **files}
    file_of = {}
    for image_id, paths in of_images(ids, files).items():
        if not paths:
            raise UserError(f"image_id {image_id!r}: found no image file for it in {source}")
        if len(paths) > 1:
            raise UserError(
                f"image_id {image_id!r} may be {paths[0]} or {paths[1]}: give a folder that "
                "has one of them, or a JSON file {image id: image file}"
            )
        file_of[image_id] = paths[0]
    return file_of


def _files_by_id(folder):
    """Return {id as text: image files that may belong to it}, by the file names in a folder."""
    files = {}
    for path in map(Path, images_in(str(folder))):
        keys = {path.stem, path.name, path.relative_to(folder).as_posix()}
        digits = re.search(r"[0-9]+\Z", path.stem)
        if digits:
            keys.add(str(int(digits.group())))
        for key in keys:
            files.setdefault(key, []).append(path)
    return files
