"""Annotation files read into rows, whatever format they are in."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from captioning.files.reading import parse_json, read_text
from captioning.runtime.errors import UserError

ImageId = Union[int, str]

_FORMATS = (
    "a list of {image, caption} rows (JSON, JSONL or CSV) or Karpathy's dataset_*.json "
    "({images: [{filename, sentences, split}]})"
)


class Row(NamedTuple):
    """One entry of an annotation file, its values not yet checked."""

    where: str  # "row 3" or "line 3", counted from 1
    fields: dict  # image, caption or captions, image_id where there is one


def read_rows(path: Path, split: Optional[str]) -> Iterator[Row]:
    """Yield the rows of an annotation file; `split` picks among those of a Karpathy file."""
    text = read_text(path)
    if path.suffix == ".csv":
        return _csv_rows(text, path)
    if path.suffix == ".jsonl":
        return _jsonl_rows(text, path)
    document = parse_json(text, path)
    if isinstance(document, list):
        return _list_rows(document, path)
    if isinstance(document, dict) and isinstance(document.get("images"), list):
        return _karpathy_rows(document["images"], path, split)
    raise UserError(f"{path}: not an annotation file: expected {_FORMATS}")


def _row(where: str, fields: Any, path: Path) -> Row:
    if not isinstance(fields, dict):
        raise UserError(f"{path}: {where} is not an object: expected {{image, caption}}")
    return Row(where, fields)


def _list_rows(entries: list, path: Path) -> Iterator[Row]:
    for number, entry in enumerate(entries, start=1):
        yield _row(f"row {number}", entry, path)


def _jsonl_rows(text: str, path: Path) -> Iterator[Row]:
    # Split at line feeds alone: str.splitlines also splits at U+2028, which JSON allows in strings.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _row(f"line {number}", parse_json(line, path, first_line=number), path)


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
            yield Row(where, {**fields, "image_id": _csv_id(fields.get("image_id"))})
    except csv.Error as error:
        line = reader.reader.line_num  # of the reader inside, which has seen the bad row
        raise UserError(f"{path}: not valid CSV at line {line}: {error}") from None


def _csv_id(text: Optional[str]) -> Union[int, str, None]:
    # CSV has no types: what is written as an integer is one, while "007" is a name.
    if text and re.fullmatch("0|[1-9][0-9]{,99}", text):
        return int(text)
    return text or None


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
            yield Row(where, {"image": image, "captions": sentences, "image_id": image_id})
