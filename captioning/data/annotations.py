"""The samples of an annotation file: images, each with its captions and its id."""

import re
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Optional, Union

from captioning.data.annotation_files import ImageId, Row, read_rows
from captioning.runtime.errors import UserError


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

    An image without `image_id` gets the digits that its file name ends in, as an integer
    (COCO_val2014_000000000042.jpg is 42), or else its path.

    Raises UserError, naming the file and the row, for whatever is missing or malformed and for two
    images that would share an id.
    """
    path = Path(path)
    captions: dict[str, list[str]] = {}
    first_row: dict[str, str] = {}
    explicit_ids: dict[str, ImageId] = {}
    for row in read_rows(path, split):
        image = _image(row, path)
        captions.setdefault(image, []).extend(_captions(row, path))
        first_row.setdefault(image, row.where)
        image_id = _explicit_id(row, path)
        if image_id is not None and explicit_ids.setdefault(image, image_id) != image_id:
            raise UserError(
                f"{path}: {row.where}: {image} has image_id {image_id!r} here and "
                f"{explicit_ids[image]!r} before: give an image one image_id"
            )
    if not captions:
        of_split = f" of split {split}" if split else ""
        raise UserError(f"{path}: no samples{of_split}: check that this is the right file")
    for image, texts in captions.items():
        if not texts:
            raise UserError(f"{path}: {first_row[image]}: {image} has no caption: add one")

    samples = [
        Sample(image, tuple(texts), explicit_ids.get(image, _derived_id(image)))
        for image, texts in captions.items()
    ]
    _check_distinct_ids(samples, path)
    return samples


def _image(row: Row, path: Path) -> str:
    image = row.fields.get("image")
    if not isinstance(image, str) or not image:
        raise UserError(f"{path}: {row.where} has no image: give the path of the image file")
    return image


def _captions(row: Row, path: Path) -> list[str]:
    value = row.fields.get("captions", row.fields.get("caption"))
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        raise UserError(f"{path}: {row.where} has no caption: add caption or captions")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{path}: {row.where} has a caption that is not text: expected a string or strings"
        )
    return [text for text in texts if text.strip()]


def _explicit_id(row: Row, path: Path) -> Optional[ImageId]:
    value = row.fields.get("image_id")
    if value is None or type(value) in (int, str):  # a JSON true is no integer here
        return value
    raise UserError(f"{path}: {row.where} has image_id {value!r}: expected an integer or a string")


def _derived_id(image: str) -> ImageId:
    # Python reads no integer of thousands of digits, as which such a name is not meant anyway.
    digits = re.search(r"(?<![0-9])[0-9]{1,100}\Z", PurePosixPath(image).stem)
    return int(digits.group()) if digits else image


def _check_distinct_ids(samples: list[Sample], path: Path) -> None:
    owner: dict[ImageId, str] = {}
    for sample in samples:
        other = owner.setdefault(sample.image_id, sample.image)
        if other != sample.image:
            raise UserError(
                f"{path}: {other} and {sample.image} have the same image id {sample.image_id!r}: "
                "give each row an image_id of its own"
            )
