"""Reads rows of images, captions and ids: lists, annotations, predictions and references.

- `.json`: a list of rows or of file names; COCO's {images, annotations}; Karpathy's {images};
  {id: file}; {id: [captions]}
- `.jsonl`, `.ndjson`: a row per line
- `.csv`, `.tsv`, and `.txt` or `.token` with a header that names image and caption
- Flickr8k's and Flickr30k's `.token` files and `results.csv`
- `.txt`, `.token`: a file name per line
- Parquet and Arrow data sets that contain the images, see `captioning.files.tables`
- a folder of photos with metadata.jsonl or metadata.csv, or with a `.txt` beside each photo
"""

import csv
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Optional

from captioning.files import stores, tables
from captioning.files.columns import COLUMNS, Row, row_of
from captioning.files.images import images_in, kinds_of
from captioning.files.reading import StrPath, parse_json, parse_json_lines, read_json
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_once

JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", ".token", ".csv", ".tsv", ".json", *JSON_LINES, ".parquet", ".arrow")
METADATA = ("metadata.jsonl", "metadata.csv")  # names of a caption file in a folder of photos

# A line of Flickr8k's .token files, or of Flickr30k's results.csv, one of whose lines lacks its
# second bar.
_FLICKR = re.compile(r"([^\t|]+?)(?:#\d+\t|\s*\|\s*\d+(?:\s*\||\s)\s*)(.*)")

# The place of a row, such as "line 3", and its columns, see `row_of`.
_PlacedRow = tuple[str, Any]


def is_list(path: StrPath) -> bool:
    """Return whether a name is that of a file of rows, or of a data set with images inside."""
    has_suffix = os.path.splitext(path)[1].lower() in SUFFIXES
    return tables.is_table(path) or (has_suffix and not os.path.isdir(path))


def read(
    path: StrPath,
    split: Optional[str] = None,
    needs: Collection[str] = (),
    bad: Optional[list[str]] = None,
) -> Iterator[Row]:
    """Yield the rows of a file or folder. Only `.json` files are read at once.

    - split: the split to read from a file in Karpathy's format; None for all
    - needs: keys of COLUMNS that every row must have
    - bad: gets the errors of rows that cannot be used; None to raise the first

    Raises UserError, which names file and row.
    """
    path = os.fspath(path)
    metadata = (os.path.join(path, name) for name in METADATA)
    path = next(filter(os.path.isfile, metadata), path)
    for place, columns in _rows(path, split):
        try:
            row = row_of(columns, f"{path}: {place}", needs)
        except UserError as error:
            if bad is None:
                raise
            bad.append(str(error))
        else:
            yield row


def _rows(path: str, split: Optional[str]) -> Iterator[_PlacedRow]:
    suffix = os.path.splitext(path)[1].lower()
    if tables.is_table(path):
        return tables.rows(path)
    if os.path.isdir(path):
        return _folder_rows(path)
    if suffix in JSON_LINES:
        return ((f"line {n}", row) for n, row in parse_json_lines(_lines(path), path))
    if suffix in SUFFIXES and suffix != ".json":
        return _text_rows(path, suffix)
    document = read_json(path)
    if isinstance(document, dict):
        if any(isinstance(document.get(key), list) for key in ("images", "annotations")):
            return _coco_rows(document, path, split)
        keys = {str: "image", list: "caption"}
        document = [{"image_id": i, keys.get(type(v), ""): v} for i, v in document.items()]
    if isinstance(document, list):
        return ((f"row {n}", row) for n, row in enumerate(document, start=1))
    raise UserError(
        f"{path}: not a list of images or captions: expected rows of {{image, caption}}, COCO's or "
        "Karpathy's {images}, {id: file} or {id: [captions]}"
    )


def _folder_rows(folder: str) -> Iterator[_PlacedRow]:
    photo, left_out = None, Counter()
    for photo in map(Path, images_in(folder, left_out=left_out)):
        name, text = str(photo.relative_to(folder)), photo.with_suffix(".txt")
        lines = map(str.strip, _lines(str(text))) if text.is_file() else ()
        columns = {"captions": list(filter(None, lines))}
        yield name, {"image": name, **columns}
    left_out.pop(".txt", None)
    if left_out:
        log_once(f"{folder}: {kinds_of(left_out)}")
    if photo is None:
        raise UserError(f"{folder}: the folder has no photos and no {METADATA[0]}")


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 text, with their ends. Raises UserError."""
    try:
        with stores.read_errors(path), stores.open_file(path) as file:
            yield from io.TextIOWrapper(file, "utf-8-sig", newline="")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason}: convert it") from None


def _text_rows(path: str, suffix: str) -> Iterator[_PlacedRow]:
    lines = _lines(path)
    first = next(lines, "")
    lines = enumerate(chain([first], lines), start=1)
    if re.match(r"[^\t]+#\d+\t|image_name\s*\|", first):
        return _flickr_rows(lines, path)
    header = set(re.split(r'[\s",;]+', first.lower()))
    has_both = all(header.intersection(COLUMNS[key]) for key in ("image", "captions"))
    if has_both or suffix in (".csv", ".tsv"):
        delimiter = next((each for each in "\t,;" if each in first), ",")
        return _table_rows((line for _, line in lines), delimiter, path)
    return ((f"line {number}", line.strip()) for number, line in lines if line.strip())


def _flickr_rows(lines: Iterable[tuple[int, str]], path: str) -> Iterator[_PlacedRow]:
    for number, line in lines:
        if match := _FLICKR.fullmatch(line.rstrip("\r\n")):
            yield f"line {number}", {"image": match[1], "caption": match[2]}
        elif line.strip() and number > 1:  # the first line may be a header
            raise UserError(
                f"{path}: line {number} is neither NAME#NUMBER, a tab and a caption, nor "
                "NAME| NUMBER| caption: correct it"
            )


def _table_rows(lines: Iterable[str], delimiter: str, path: str) -> Iterator[_PlacedRow]:
    reader = csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        for columns in reader:
            place = f"line {reader.line_num}"
            if None in columns:  # DictReader's key for values without a column
                raise UserError(
                    f"{path}: {place} has more values than line 1: put captions in double quotes"
                )
            for name, text in columns.items():
                text = columns[name] = text and text.strip()
                is_id = name.lower() in COLUMNS["image_id"]
                # CSV has no types: 42 is an integer, 007 is text.
                if is_id and re.fullmatch("0|[1-9][0-9]{,99}", text or ""):
                    columns[name] = int(text)
                if name.lower() == "captions" and re.match(r'\[\s*["\]]', text or ""):  # JSON
                    columns[name] = parse_json(text, f"{path}: {place}: captions")
            yield place, columns
    except csv.Error as error:
        line = reader.reader.line_num  # counts the bad row, which DictReader does not
        raise UserError(f"{path}: not valid CSV at line {line}: {error}") from None


def _coco_rows(document: dict, path: str, split: Optional[str]) -> Iterator[_PlacedRow]:
    """Yield a row for each of `images`, then for each other id that has captions.

    The captions of an image are in `annotations`, or, in Karpathy's format, in its `sentences`.
    """
    # The authors of the split also train on "restval", the rest of COCO's validation images.
    splits = ("train", "restval") if split == "train" else (split,)
    values = map(document.get, ("images", "annotations"))
    images, annotations = (value if isinstance(value, list) else () for value in values)
    captions = defaultdict(list)
    for number, entry in enumerate(annotations, start=1):
        where = f"{path}: row {number} of annotations"
        row = row_of(entry, where, needs=["image_id"])
        captions[row["image_id"]] += row.get("captions", ())
    for number, entry in enumerate(images, start=1):
        place = f"row {number} of images"
        row = row_of(entry, f"{path}: {place}")
        texts = captions.pop(row.get("image_id"), None)
        if "sentences" in row:
            try:
                texts = [sentence["raw"] for sentence in row["sentences"]]
                row["image"] = os.path.join(row.get("filepath", ""), row["image"])
            except (KeyError, TypeError):
                raise UserError(f"{path}: {place} lacks filename, or sentences with raw") from None
        if split is None or row.get("split", split) in splits:
            yield place, {**row, "caption": texts} if texts else row
    for image_id, texts in captions.items():
        yield f"captions of image_id {image_id!r}", {"image_id": image_id, "caption": texts}
