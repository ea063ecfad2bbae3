"""The samples of an annotation file, whatever its format: images, their captions and their ids."""

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Optional, Union

from captioning.data.formats import CAPTION_NAMES, IMAGE_NAMES, captions_file, read_rows
from captioning.runtime.errors import UserError

ImageId = Union[int, str]


class Sample(NamedTuple):
    """An image and what people wrote about it."""

    image: str  # path as in the annotation file, relative to image_root
    captions: tuple[str, ...]  # at least one, as written
    image_id: ImageId  # names the image in results and references


def read_annotations(path: Union[str, PathLike], split: Optional[str] = None) -> list[Sample]:
    """Return the samples of an annotation file, in the order in which it first names the images.

    The format is told from the extension and the content:
      - JSON list, `.jsonl` or `.csv` of rows {image, caption or captions, image_id (optional)}; a
        caption is a string or (not in CSV) a list of strings. BLIP's own files are of this kind.
        Rows of the same image become one sample; blank captions are left out.
      - Karpathy's `dataset_*.json`, of which `split` (train, val or test; None for all) is taken.
      - COCO's `captions_*.json`; Flickr8k's and Flickr30k's `.token` files, `captions.txt` and
        `results.csv`; a folder of photos with `metadata.jsonl` or `.csv`, or a `.txt` beside each.

    An image without `image_id` gets the digits that its file name ends in, as an integer
    (COCO_val2014_000000000042.jpg is 42), or else its path. Where two images would get the same
    digits, as of Flickr8k, whose names end in hashes, all have their paths.

    Raises UserError, naming the file and the row, for whatever is missing or malformed and for two
    images that would share an id.
    """
    path = captions_file(Path(path))
    captions: dict[str, list[str]] = {}
    first_row: dict[str, str] = {}
    explicit_ids: dict[str, ImageId] = {}
    for where, fields in read_rows(path, split):
        image, texts, image_id = checked_row(fields, f"{path}: {where}")
        captions.setdefault(image, []).extend(texts)
        first_row.setdefault(image, where)
        if image_id is not None and explicit_ids.setdefault(image, image_id) != image_id:
            raise UserError(
                f"{path}: {where}: {image} has image_id {image_id!r} here and "
                f"{explicit_ids[image]!r} before: give an image one image_id"
            )
    if not captions:
        of_split = f" of split {split}" if split else ""
        raise UserError(f"{path}: no samples{of_split}: check that this is the right file")
    samples = []
    owner: dict[ImageId, str] = {}
    ids = _with_derived(explicit_ids, captions)
    for image, texts in captions.items():
        if not texts:
            raise UserError(f"{path}: {first_row[image]}: {image} has no caption: add one")
        samples.append(Sample(image, tuple(texts), ids[image]))
    for sample in samples:
        other = owner.setdefault(sample.image_id, sample.image)
        if other != sample.image:
            raise UserError(
                f"{path}: {other} and {sample.image} have the same image id {sample.image_id!r}: "
                "give each row an image_id of its own"
            )
    return samples


def checked_row(fields: Any, where: str) -> tuple[str, list[str], Optional[ImageId]]:
    """The image of a row, its captions that are not blank, and its id if it has one."""
    if not isinstance(fields, dict):
        raise UserError(f"{where} is not an object: expected {{image, caption}}")
    image, image_id = _first(fields, IMAGE_NAMES), fields.get("image_id")
    texts = _first(fields, CAPTION_NAMES)
    if not isinstance(image, str) or not image:
        raise UserError(f"{where} has no image: give the path of the image file")
    if texts is None:
        raise UserError(f"{where} has no caption: add caption or captions")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where} has a caption that is not text: expected a string or strings")
    if image_id is not None and type(image_id) not in (int, str):  # a JSON true is no integer here
        raise UserError(f"{where} has image_id {image_id!r}: expected an integer or a string")
    return image, [text for text in texts if text.strip()], image_id


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _with_derived(explicit: Mapping[str, ImageId], images: Iterable[str]) -> dict[str, ImageId]:
    """The id of each image, see `read_annotations`."""
    derived = {image: derived_id(image) for image in images if image not in explicit}
    if len(set(derived.values())) < len(derived):
        derived = {image: image for image in derived}
    return {**derived, **explicit}


def derived_id(image: str) -> ImageId:
    """That of an image to which nobody has given one, see `read_annotations`."""
    # Python reads no integer of thousands of digits, as which such a name is not meant anyway.
    digits = re.search(r"(?<![0-9])[0-9]{1,100}\Z", PurePosixPath(image).stem)
    return int(digits.group()) if digits else image
