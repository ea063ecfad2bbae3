"""The samples of an annotation file, whatever its format: images, their captions and their ids."""

import csv
import io
import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Optional, Union

from captioning.files.reading import parse_json, parse_json_lines, read_text
from captioning.runtime.errors import UserError

ImageId = Union[int, str]
# Where an entry stands, such as "row 3" (counted from 1), and what is there, not yet checked:
# image, caption or captions, image_id where there is one.
Row = tuple[str, Any]

_FORMATS = (
    "a list of {image, caption} rows (JSON, JSONL or CSV) or Karpathy's dataset_*.json "
    "({images: [{filename, sentences, split}]})"
)


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
    for where, fields in _rows(path, split):
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
    for image, texts in captions.items():
        if not texts:
            raise UserError(f"{path}: {first_row[image]}: {image} has no caption: add one")
        image_id = explicit_ids.get(image, derived_id(image))
        samples.append(Sample(image, tuple(texts), image_id))
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
    image, image_id = fields.get("image"), fields.get("image_id")
    texts = fields.get("captions", fields.get("caption"))
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


def derived_id(image: str) -> ImageId:
    """That of an image to which nobody has given one, see `read_annotations`."""
    # Python reads no integer of thousands of digits, as which such a name is not meant anyway.
    digits = re.search(r"(?<![0-9])[0-9]{1,100}\Z", PurePosixPath(image).stem)
    return int(digits.group()) if digits else image


def _rows(path: Path, split: Optional[str]) -> Iterator[Row]:
    text = read_text(path)
    if path.suffix == ".csv":
        return _csv_rows(text, path)
    if path.suffix == ".jsonl":
        return ((f"line {number}", row) for number, row in parse_json_lines(text, path))
    document = parse_json(text, path)
    if isinstance(document, list):
        return ((f"row {number}", entry) for number, entry in enumerate(document, start=1))
    if isinstance(document, dict) and isinstance(document.get("images"), list):
        return _karpathy_rows(document["images"], path, split)
    raise UserError(f"{path}: not an annotation file: expected {_FORMATS}")


def _csv_rows(text: str, path: Path) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        missing = {"image", "caption"}.difference(reader.fieldnames or ())
        if missing:
            raise UserError(
                f"{path}: line 1 names no column {' and '.join(sorted(missing))}: "
                "expected image,caption or image,caption,image_id"
            )
        for fields in reader:
            where = f"line {reader.line_num}"
            if None in fields:  # DictReader's key for what the header has no name for
                raise UserError(
                    f"{path}: {where} has more values than line 1: put captions in double quotes"
                )
            # CSV has no types: what is written as an integer is one, while "007" is a name.
            image_id = fields.get("image_id") or None
            if image_id and re.fullmatch("0|[1-9][0-9]{,99}", image_id):
                image_id = int(image_id)
            yield where, {**fields, "image_id": image_id}
    except csv.Error as error:
        line = reader.reader.line_num  # of the reader inside, which has seen the bad row
        raise UserError(f"{path}: not valid CSV at line {line}: {error}") from None


def _karpathy_rows(images: list, path: Path, split: Optional[str]) -> Iterator[Row]:
    # The authors of the split train on the rest of the validation images, too.
    wanted = ("train", "restval") if split == "train" else (split,)
    for number, entry in enumerate(images, start=1):
        where = f"row {number} of images"
        try:
            sentences = [sentence["raw"] for sentence in entry["sentences"]]
            image = "/".join(filter(None, (entry.get("filepath"), entry["filename"])))
            entry_split = entry["split"]
        except (KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path}: {where} lacks filename, split or sentences with raw: expected {_FORMATS}"
            ) from None
        if split is None or entry_split in wanted:
            image_id = entry.get("cocoid", entry.get("imgid"))
            yield where, {"image": image, "captions": sentences, "image_id": image_id}
