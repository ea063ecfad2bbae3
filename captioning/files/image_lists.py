"""Reads lists of image files, and the prompts of their rows."""

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

from captioning.files import stores, tables
from captioning.files.reading import StrPath, parse_json_lines, read_json
from captioning.runtime.errors import UserError

LISTS = (".txt", ".csv", ".json", ".jsonl")
PATH_COLUMNS = ("image", "path", "file_name", "filename", "filepath", "image_path", "file")
ID_COLUMNS = ("image_id", "id")
_COLUMN = re.compile(r"(?<!\{)\{(\w+)\}(?!\})")  # {column} in a prompt


class ListedImage(NamedTuple):
    """An image file in a list.

    image: the name as the list has it. in_row: whether the name comes from a row with named fields
    (CSV, JSON objects) and not from a plain list of names. prompt: the prompt in the row, if any.
    """

    image: str
    image_id: Union[int, str, None] = None
    in_row: bool = False
    prompt: Optional[str] = None


def read_list(
    path: StrPath, column: Optional[str] = None, template: Optional[str] = None
) -> Iterator[ListedImage]:
    """Return an iterator over the images in a list, by the names in the list, with repetitions.

    - `.txt`: one image file per line
    - `.csv`, `.jsonl`, a JSON list of objects, or COCO's {images: [...]}: the file name is in
      `column`, or in the first of PATH_COLUMNS that exists. The id is in one of ID_COLUMNS
    - a JSON list of files, or {id: file}
    - a Parquet or Arrow data set that contains the images, see `captioning.files.tables`

    column: the name of the column with file names, if it is not in PATH_COLUMNS. template: see
    `prompt_of_row`. Only `.json` files are read at once; other lists are read row by row. Raises
    UserError.
    """
    suffix = os.path.splitext(path)[1]
    if tables.is_table(path):
        rows, column = tables.rows(path), tables.IMAGE
    elif suffix == ".txt":
        rows = ((path, name) for name in map(str.strip, _lines(path)) if name)
    elif suffix == ".csv":
        rows = _csv_rows(path)
    elif suffix == ".jsonl":
        rows = ((f"{path}: line {n}", row) for n, row in parse_json_lines(_lines(path), path))
    else:
        document = read_json(path)
        if isinstance(document, dict) and isinstance(document.get("images"), list):
            document = document["images"]
        if isinstance(document, dict):
            if not all(isinstance(name, str) for name in document.values()):
                raise UserError(f"{path}: expected a list of images, or {{image id: image file}}")
            rows = ((path, ListedImage(name, image_id)) for image_id, name in document.items())
        else:
            entries = document if isinstance(document, list) else [document]
            rows = ((f"{path}: row {n}", row) for n, row in enumerate(entries, 1))
    return (_image_in_row(row, where, column, template) for where, row in rows)


def _csv_rows(path: StrPath) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(_lines(path, newline=""), strict=True)
    try:
        for row in reader:
            yield f"{path}: line {reader.line_num}", row
    except csv.Error as error:
        raise UserError(f"{path}: not valid CSV at line {reader.line_num + 1}: {error}") from None


def _image_in_row(
    row: Any, where: str, column: Optional[str], template: Optional[str]
) -> ListedImage:
    row = ListedImage(row) if isinstance(row, str) else row
    if isinstance(row, ListedImage):
        if has_columns(template):
            raise UserError(f"--prompt names columns, and {where} has none: use .csv or .jsonl")
        return row
    fields = row if isinstance(row, Mapping) else {}
    names = (column,) if column else PATH_COLUMNS
    image = next((fields[name] for name in names if fields.get(name)), None)
    if not isinstance(image, str):
        wanted = column or f"one of {', '.join(PATH_COLUMNS)}"
        raise UserError(
            f"{where} has no image: looked for {wanted}; rename the column, or give its name with "
            "--column of captioning.caption"
        )
    ids = (fields[name] for name in ID_COLUMNS if fields.get(name) not in (None, ""))
    image_id = next(ids, None)
    image_id = image_id if type(image_id) in (int, str) else None
    return ListedImage(image, image_id, True, prompt_of_row(fields, where, template))


def prompt_of_row(fields: Mapping[str, Any], where: str, template: Optional[str]) -> Optional[str]:
    """Return the prompt of a row, or None.

    template: the value of --prompt. Without a template, the prompt is the row's field `prompt`. In
    a template such as "a {colour} bird", {colour} is replaced by the row's field `colour`. For a
    template without columns the result is None: the caller uses the template for all images. Raises
    UserError.
    """
    if template is None:
        return prompt_field(fields, where)
    if not has_columns(template):
        return None
    try:
        return _COLUMN.sub(lambda match: str(fields[match[1]]), template)
    except KeyError as error:
        names = ", ".join(map(str, fields))
        raise UserError(f"{where} has no column {error} of --prompt, only {names}") from None


def prompt_field(fields: Mapping[str, Any], where: str) -> Optional[str]:
    """Return the field `prompt` of a row; None if it is empty. Raises UserError if it is not text.

    where: the file and row, for the error.
    """
    prompt = fields.get("prompt")
    if not isinstance(prompt, (str, type(None))):
        raise UserError(f"{where} has the prompt {prompt!r}: expected text")
    return (prompt or "").strip() or None


def has_columns(template: Optional[str]) -> bool:
    """Return whether a prompt contains a {column}. Double braces are text."""
    return bool(_COLUMN.search(template or ""))


def _lines(path: StrPath, newline: Optional[str] = None) -> Iterator[str]:
    name = str(path)
    try:
        with stores.read_errors(name), stores.open_file(name) as file:
            yield from io.TextIOWrapper(file, "utf-8-sig", newline=newline)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason}: convert it") from None
