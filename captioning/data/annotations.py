"""Reads annotation files of several formats: images, their captions and their ids."""

import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Optional, Union

from captioning.data.formats import CAPTION_NAMES, IMAGE_NAMES, captions_file, read_rows
from captioning.files.image_lists import prompt_field
from captioning.files.reading import StrPath
from captioning.runtime.errors import UserError

ImageId = Union[int, str]


class Sample(NamedTuple):
    """An image and its human captions."""

    image: str  # path as in the annotation file, relative to image_root
    captions: tuple[str, ...]  # at least one, unchanged
    image_id: ImageId  # identifies the image in results and references
    prompt: Optional[str] = None  # replaces the captioner's default prompt


def read_annotations(path: StrPath, split: Optional[str] = None) -> list[Sample]:
    """Return the samples of an annotation file, in the order of its images.

    The format is detected from the extension and the content:
      - JSON list, `.jsonl` or `.csv` of rows {image, caption or captions, image_id (optional)}; a
        caption is a string or (not in CSV) a list of strings. BLIP's files have this format. Rows
        of the same image become one sample; blank captions are left out.
      - Karpathy's `dataset_*.json`. Only `split` is read (train, val or test; None for all).
      - COCO's `captions_*.json`.
      - Flickr8k's and Flickr30k's `.token` files, `captions.txt` and `results.csv`.
      - A folder of photos with `metadata.jsonl` or `metadata.csv`, or with a `.txt` file for each
        photo.
      - A Parquet or Arrow data set that contains the images, see `captioning.files.tables`.

    A row may have a `prompt`, which has to be the same in all rows of an image.

    If an image has no `image_id`, its id is the number at the end of its file name
    (COCO_val2014_000000000042.jpg is 42), or its path if there is no number. If two such numbers
    are equal, all images without `image_id` get their paths as ids. This happens in Flickr8k, where
    file names end in hashes.

    Raises UserError, which names file and row, for missing or malformed entries and for two images
    with the same id.
    """
    path = captions_file(Path(path))
    captions, first_row, ids, prompts = {}, {}, {}, {}  # each {image: value}
    for where, fields in read_rows(path, split):
        image, texts, image_id = checked_row(fields, f"{path}: {where}")
        captions.setdefault(image, []).extend(texts)
        first_row.setdefault(image, where)
        prompt = prompt_field(fields, f"{path}: {where}")
        if prompts.setdefault(image, prompt) != prompt:
            raise UserError(
                f"{path}: {where}: {image} has the prompt {prompt!r} here and {prompts[image]!r} "
                "before: give an image one prompt"
            )
        if image_id is not None and ids.setdefault(image, image_id) != image_id:
            raise UserError(
                f"{path}: {where}: {image} has image_id {image_id!r} here and "
                f"{ids[image]!r} before: give an image one image_id"
            )
    if not captions:
        in_split = f" of split {split}" if split else ""
        raise UserError(f"{path}: no samples{in_split}: check that this is the right file")
    derived = {image: derived_id(image) for image in captions if image not in ids}
    if len(set(derived.values())) < len(derived):
        derived = {image: image for image in derived}
    ids.update(derived)
    owner = {}  # {image id: image}
    for image, texts in captions.items():
        if not texts:
            raise UserError(f"{path}: {first_row[image]}: {image} has no caption: add one")
        other = owner.setdefault(ids[image], image)
        if other != image:
            raise UserError(
                f"{path}: {other} and {image} have the same image id {ids[image]!r}: "
                "give each image a different image_id"
            )
    return [
        Sample(image, tuple(texts), ids[image], prompts[image]) for image, texts in captions.items()
    ]


class CheckedRow(NamedTuple):
    """The fields of a row of annotations, without blank captions."""

    image: str
    captions: list[str]
    image_id: Optional[ImageId]


def checked_row(fields: Any, where: str) -> CheckedRow:
    """Return the fields of a row after checks of their types.

    where: the file and row, for errors. Raises UserError for a malformed row.
    """
    if not isinstance(fields, dict):
        raise UserError(f"{where} is not an object: expected {{image, caption}}")
    image = next((fields[name] for name in IMAGE_NAMES if name in fields), None)
    texts = next((fields[name] for name in CAPTION_NAMES if name in fields), None)
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
    return CheckedRow(image, [text for text in texts if text.strip()], image_id)


def derived_id(image: str) -> ImageId:
    """Return the id of an image without `image_id`; see `read_annotations`."""
    # At most 100 digits, because Python refuses to parse numbers of thousands of digits.
    digits = re.search(r"(?<![0-9])[0-9]{1,100}\Z", PurePosixPath(image).stem)
    return int(digits.group()) if digits else image
