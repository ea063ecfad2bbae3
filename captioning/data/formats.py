"""Reads the rows of caption files. The format is detected from a file's name and content."""

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from captioning.files import tables
from captioning.files.images import images_in
from captioning.files.reading import parse_json, parse_json_lines, read_text
from captioning.runtime.errors import UserError

# (position, fields) of a row. The position is for errors, such as "row 3" (counted from 1). The
# fields are not yet checked: an image and a caption or captions, under one of the names below, and
# optionally image_id and prompt.
Row = tuple[str, Any]

IMAGE_NAMES = ("image", "file_name", "image_name")
CAPTION_NAMES = ("captions", "caption", "text", "comment")

TABLES = (".csv", ".tsv", ".txt", ".token")  # suffixes of files with one image name per line
METADATA = ("metadata.jsonl", "metadata.csv")  # names of a caption file in a folder of photos

FORMATS = (
    "a list of {image, caption} rows (JSON, JSONL or CSV), COCO's {images: [{id, file_name}], "
    "annotations: [{image_id, caption}]} or Karpathy's dataset_*.json "
    "({images: [{filename, sentences, split}]})"
)

# Formats of Flickr8k and Flickr30k: a pattern of how the first line begins, a pattern of each line,
# and a description of a line. The second bar is optional, because a line of results.csv lacks it.
_FLICKR = (
    (r"[^\t]+#\d+\t", r"([^\t]+)#\d+\t(.*)", "NAME#NUMBER, a tab and a caption"),
    (r"image_name\s*\|", r"([^|]+?)\s*\|\s*\d+(?:\s*\||\s)\s*(.*)", "NAME| NUMBER| caption"),
)


def is_json(path: Path) -> bool:
    """Return whether a caption file is one JSON document."""
    return not (path.is_dir() or path.suffix in (".jsonl", *TABLES) or tables.is_table(path))


def captions_file(path: Path) -> Path:
    """Return the metadata file in a folder of photos. Without one, return the path unchanged."""
    return next((path / name for name in METADATA if (path / name).is_file()), path)


def read_rows(path: Path, split: Optional[str]) -> Iterator[Row]:
    """Return the rows of a file or folder. Raises UserError.

    split: the split to read from a file in Karpathy's format; None for all splits.
    """
    if tables.is_table(path):
        rows = tables.rows(path)
        # Image names become absolute paths, because relative paths are looked for in image_root.
        return ((name, {**row, "image": os.path.abspath(name)}) for name, row in rows)
    if path.is_dir():
        return _folder_rows(path)
    text = read_text(path)
    if path.suffix == ".jsonl":
        return ((f"line {number}", row) for number, row in parse_json_lines(text.split("\n"), path))
    if path.suffix in TABLES:
        for first, line, description in _FLICKR:
            if re.match(first, text):
                return _flickr_rows(text, line, description, path)
        return _table_rows(text, path)
    document = parse_json(text, path)
    if isinstance(document, list):
        return ((f"row {number}", entry) for number, entry in enumerate(document, start=1))
    if isinstance(document, dict) and isinstance(document.get("images"), list):
        if isinstance(document.get("annotations"), list):
            return _coco_rows(document["images"], document["annotations"], path)
        return _karpathy_rows(document["images"], path, split)
    raise UserError(f"{path}: not an annotation file: expected {FORMATS}")


def _folder_rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each photo. Its captions are the lines of a text file of the same name."""
    photos = list(map(Path, images_in(str(folder))))
    if not photos:
        raise UserError(f"{folder}: the folder has no photos and no {METADATA[0]}")
    missing = [photo for photo in photos if not photo.with_suffix(".txt").is_file()]
    if missing:
        raise UserError(
            f"{folder}: {len(missing)} of {len(photos)} photos have no .txt file with captions, "
            f"the first is {missing[0]}: add these files, or move the photos out of the folder"
        )
    for photo in photos:
        captions = read_text(photo.with_suffix(".txt")).strip().split("\n")
        image = photo.relative_to(folder).as_posix()
        yield image, {"image": image, "captions": captions}


def _flickr_rows(text: str, line: str, description: str, path: Path) -> Iterator[Row]:
    for number, content in enumerate(text.split("\n"), start=1):
        match = re.fullmatch(line, content)
        if match:
            yield f"line {number}", {"image": match[1], "caption": match[2]}
        elif content.strip() and number > 1:  # the first line may be a header
            raise UserError(f"{path}: line {number} is not {description}: correct it")


def _table_rows(text: str, path: Path) -> Iterator[Row]:
    delimiter = "\t" if "\t" in text.partition("\n")[0] else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = {name.strip() for name in reader.fieldnames or ()}
        wanted = {"caption": CAPTION_NAMES, "image": IMAGE_NAMES}
        missing = [kind for kind, names in wanted.items() if columns.isdisjoint(names)]
        if missing:
            raise UserError(
                f"{path}: line 1 has no column {' and '.join(missing)}: "
                "expected image,caption or image,caption,image_id"
            )
        reader.fieldnames = [name.strip() for name in reader.fieldnames]
        for fields in reader:
            where = f"line {reader.line_num}"
            if None in fields:  # DictReader's key for values without a column
                raise UserError(
                    f"{path}: {where} has more values than line 1: put captions in double quotes"
                )
            # CSV has no types. "42" is read as an integer, but "007" as a string.
            image_id = fields.get("image_id") or None
            if image_id and re.fullmatch("0|[1-9][0-9]{,99}", image_id):
                image_id = int(image_id)
            captions = fields.get("captions") or ""
            if captions.startswith("["):  # a list as in JSON
                fields["captions"] = parse_json(captions, f"{path}: {where}: captions")
            yield where, {**fields, "image_id": image_id}
    except csv.Error as error:
        line = reader.reader.line_num  # counts the bad row, which DictReader does not
        raise UserError(f"{path}: not valid CSV at line {line}: {error}") from None


def _coco_rows(images: list, annotations: list, path: Path) -> Iterator[Row]:
    captions = defaultdict(list)
    try:
        for number, entry in enumerate(annotations, start=1):
            where, lacks = f"row {number} of annotations", "image_id or caption"
            captions[entry["image_id"]].append(entry["caption"])
        for number, entry in enumerate(images, start=1):
            where, lacks = f"row {number} of images", "id or file_name"
            image, image_id = entry["file_name"], entry["id"]
            texts = captions.pop(image_id, [])
            yield where, {"image": image, "image_id": image_id, "captions": texts}
    except (KeyError, TypeError):
        raise UserError(f"{path}: {where} lacks {lacks}: expected {FORMATS}") from None
    if captions:
        raise UserError(
            f"{path}: annotations has captions of image_id {next(iter(captions))!r}, which images "
            "does not have"
        )


def _karpathy_rows(images: list, path: Path, split: Optional[str]) -> Iterator[Row]:
    # The authors of the split also train on "restval", the rest of COCO's validation images.
    wanted = ("train", "restval") if split == "train" else (split,)
    for number, entry in enumerate(images, start=1):
        where = f"row {number} of images"
        try:
            captions = [sentence["raw"] for sentence in entry["sentences"]]
            image = "/".join(filter(None, (entry.get("filepath"), entry["filename"])))
            if split is None or entry["split"] in wanted:
                image_id = entry.get("cocoid", entry.get("imgid"))
                yield where, {"image": image, "captions": captions, "image_id": image_id}
        except (KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path}: {where} lacks filename, split or sentences with raw: expected {FORMATS}"
            ) from None
