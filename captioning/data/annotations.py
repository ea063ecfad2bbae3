"""The samples of an annotation file in any format: images, their captions and their ids."""

import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Optional, Union

from captioning.data.formats import CAPTION_NAMES, IMAGE_NAMES, captions_file, read_rows
from captioning.files.reading import StrPath
from captioning.runtime.errors import UserError

ImageId = Union[int, str]


class Sample(NamedTuple):
    """An image and its human captions."""

    image: str  # path as in the annotation file, relative to image_root
    captions: tuple[str, ...]  # at least one, as written
    image_id: ImageId  # identifies the image in results and references


def read_annotations(path: StrPath, split: Optional[str] = None) -> list[Sample]:
    """Return the samples of an annotation file, in the order in which it first names the images.

    The format is detected from the extension and the content:
      - JSON list, `.jsonl` or `.csv` of rows {image, caption or captions, image_id (optional)}; a
        caption is a string or (not in CSV) a list of strings. BLIP's own files are of this kind.
        Rows of the same image become one sample; blank captions are left out.
      - Karpathy's `dataset_*.json`; of it only `split` (train, val or test; None for all) is read.
      - COCO's `captions_*.json`; Flickr8k's and Flickr30k's `.token` files, `captions.txt` and
        `results.csv`; a folder of photos with `metadata.jsonl` or `.csv`, or a `.txt` beside each.

    An image without `image_id` gets the digits at the end of its file name, as an integer
    (COCO_val2014_000000000042.jpg is 42), or else its path. If two images would get the same
    digits, as in Flickr8k, whose names end in hashes, all such images get their paths.

    Raises UserError, naming the file and the row, for whatever is missing or malformed and for two
    images with the same id.
    """
    path = captions_file(Path(path))
    captions: dict[str, list[str]] = {}
    first_row: dict[str, str] = {}
    ids: dict[str, ImageId] = {}
    for where, fields in read_rows(path, split):
        image, texts, image_id = checked_row(fields, f"{path}: {where}")
        captions.setdefault(image, []).extend(texts)
        first_row.setdefault(image, where)
        if image_id is not None and ids.setdefault(image, image_id) != image_id:
            raise UserError(
                f"{path}: {where}: {image} has image_id {image_id!r} here and "
                f"{ids[image]!r} before: give an image one image_id"
            )
    if not captions:
        of_split = f" of split {split}" if split else ""
        raise UserError(f"{path}: no samples{of_split}: check that this is the right file")
    derived = {image: derived_id(image) for image in captions if image not in ids}
    if len(set(derived.values())) < len(derived):
        derived = {image: image for image in derived}
    ids.update(derived)
    owner: dict[ImageId, str] = {}
    for image, texts in captions.items():
        if not texts:
            raise UserError(f"{path}: {first_row[image]}: {image} has no caption: add one")
        other = owner.setdefault(ids[image], image)
        if other != image:
            raise UserError(
                f"{path}: {other} and {image} have the same image id {ids[image]!r}: "
                "give each row an image_id of its own"
            )
    return [Sample(image, tuple(texts), ids[image]) for image, texts in captions.items()]


def checked_row(fields: Any, where: str) -> tuple[str, list[str], Optional[ImageId]]:
    """Return the image of a row, its captions without blank ones, and its id if it has one."""
    if not isinstance(fields, dict):
        raise UserError(f"{where} is not an object: expected {{image, caption}}")
    image, texts = (
        next((fields[name] for name in names if name in fields), None)
        for names in (IMAGE_NAMES, CAPTION_NAMES)
    )
    image_id = fields.get("image_id")
    if not isinstance(image, str) or not image:
        raise UserError(f"{where} has no image: give the path of the image file")
    if texts is None:
        raise UserError(f"{where} has no caption: add caption or captions")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where} has a caption that is not text: expected a string or strings")
    if image_id is not None and type(image_id) not in (int, str):  # isinstance would accept true
        raise UserError(f"{where} has image_id {image_id!r}: expected an integer or a string")
    return image, [text for text in texts if text.strip()], image_id


def derived_id(image: str) -> ImageId:
    """Return the id of an image that has none in its file; see `read_annotations`."""
    # Python refuses integers of thousands of digits; such a name is not meant as a number.
    digits = re.search(r"(?<![0-9])[0-9]{1,100}\Z", PurePosixPath(image).stem)
    return int(digits.group()) if digits else image
