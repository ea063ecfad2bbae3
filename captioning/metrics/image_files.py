"""Which file each image id stands for."""

import re
from collections.abc import Iterable
from pathlib import Path

from captioning.data.annotations import read_annotations
from captioning.data.caption_files import ImageId
from captioning.files.images import images_in, read_list
from captioning.files.reading import read_json
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
        named = {i: source / name for i, name in _annotated(references).items()}
    else:
        named = {i: source.parent / name for i, name in _mapping(source).items()}
    named = {str(i): path for i, path in named.items() if path.is_file()}
    in_folder = None
    found = {}
    for image_id in ids:
        path = named.get(str(image_id))
        if path is None and source.is_dir():
            in_folder = _by_name(source) if in_folder is None else in_folder
            path = _only(in_folder.get(str(image_id), []), image_id)
        if path is None:
            raise UserError(f"image_id {image_id!r}: found no image file of it in {source}")
        found[image_id] = path
    return found


def _mapping(source):
    names = {item.image_id: item.image for item in read_list(source)}
    if not names or None in names:
        raise UserError(f"{source}: expected {{image id: image file}}, or give a folder of images")
    return names


def _annotated(references):
    """Return {image id: image file} of those that the file of references names."""
    document = read_json(references)
    if isinstance(document, list):
        return {sample.image_id: sample.image for sample in read_annotations(references)}
    entries = document.get("images", []) if isinstance(document, dict) else []
    entries = entries if isinstance(entries, list) else []
    entries = [entry for entry in entries if isinstance(entry, dict)]
    return {entry.get("id"): entry["file_name"] for entry in entries if "file_name" in entry}


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


def _only(paths, image_id):
    if len(paths) > 1:
        raise UserError(
            f"image_id {image_id!r} may be {paths[0]} or {paths[1]}: give a folder that has one of "
            "them, or a JSON file {image id: image file}"
        )
    return paths[0] if paths else None
