"""Lists of images: a text file, CSV, JSON or JSON lines."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.data.caption_files import ImageId
from captioning.files.reading import parse_json, read_text
from captioning.runtime.errors import UserError

SUFFIXES = (".txt", ".csv", ".json", ".jsonl")
PATH_COLUMNS = ("image", "path", "file_name", "filename", "filepath", "image_path", "file")
ID_COLUMNS = ("image_id", "id")


class Item(NamedTuple):
    """An image file, and the id that a list gives it."""

    image: str
    image_id: Optional[ImageId] = None


def read_list(path: Path, root: Optional[Path], column: Optional[str]) -> Iterator[Item]:
    """The images of a list, those that it names twice twice.

    - `.txt`: an image file a line;
    - `.csv`, `.jsonl`, a `.json` list of objects, or COCO's {images: [...]}: the file is in
      `column`, or else in the first of PATH_COLUMNS that there is, an id in ID_COLUMNS;
    - a `.json` list of files, or {id: file}.

    Paths start in `root`, or else in the list's folder. Raises UserError.
    """
    root = root or path.parent
    for item in _READERS[path.suffix](path, column):
        yield Item(str(root / item.image), item.image_id)


def _text(path: Path, column: Optional[str]) -> Iterator[Item]:
    for line in _lines(path):
        if line.strip():
            yield Item(line.strip())


def _csv(path: Path, column: Optional[str]) -> Iterator[Item]:
    reader = csv.DictReader(_lines(path, newline=""), strict=True)
    try:
        for row in reader:
            yield _item(row, f"{path}: line {reader.line_num}", column)
    except csv.Error as error:
        raise UserError(f"{path}: not valid CSV at line {reader.line_num + 1}: {error}") from None


def _jsonl(path: Path, column: Optional[str]) -> Iterator[Item]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            row = parse_json(line.rstrip("\n"), path, first_line=number)
            yield _item(row, f"{path}: line {number}", column)


def _json(path: Path, column: Optional[str]) -> Iterator[Item]:
    document = parse_json(read_text(path), path)
    if isinstance(document, dict) and isinstance(document.get("images"), list):
        document = document["images"]
    if isinstance(document, dict):
        if not all(isinstance(name, str) for name in document.values()):
            raise UserError(f"{path}: expected a list of images, or {{id: image file}}")
        return (Item(name, image_id) for image_id, name in document.items())
    rows: Iterable[Any] = document if isinstance(document, list) else [document]
    return (_item(row, f"{path}: row {number}", column) for number, row in enumerate(rows, start=1))


_READERS = {".txt": _text, ".csv": _csv, ".jsonl": _jsonl, ".json": _json}


def _item(row: Any, where: str, column: Optional[str]) -> Item:
    if isinstance(row, str):
        return Item(row)
    fields = row if isinstance(row, Mapping) else {}
    names = (column,) if column else PATH_COLUMNS
    image = next((fields[name] for name in names if fields.get(name)), None)
    if not isinstance(image, str):
        wanted = column or f"one of {', '.join(PATH_COLUMNS)}"
        raise UserError(f"{where} names no image: looked for {wanted}; --column names another")
    image_id = next(
        (fields[name] for name in ID_COLUMNS if fields.get(name) not in (None, "")), None
    )
    return Item(image, image_id if type(image_id) in (int, str) else None)


def _lines(path: Path, newline: Optional[str] = None) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig", newline=newline) as file:
            yield from file
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason}: convert it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
