"""The rows of caption files, each format told from the file's name and content."""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from captioning.files.images import images_in
from captioning.files.reading import parse_json, parse_json_lines, read_text
from captioning.runtime.errors import UserError

# Where an entry stands, such as "row 3" (counted from 1), and what is there, not yet checked: an
# image, a caption or captions, under one of the names below, and image_id where there is one.
Row = tuple[str, Any]

IMAGE_NAMES = ("image", "file_name", "image_name")
CAPTION_NAMES = ("captions", "caption", "text", "comment")

TABLES = (".csv", ".tsv", ".txt", ".token")  # suffixes of files that have an image a line
METADATA = ("metadata.jsonl", "metadata.csv")  # what a folder of photos may hold

FORMATS = (
    "a list of {image, caption} rows (JSON, JSONL or CSV), COCO's {images: [{id, file_name}], "
    "annotations: [{image_id, caption}]} or Karpathy's dataset_*.json "
    "({images: [{filename, sentences, split}]})"
)

# Files of Flickr8k and Flickr30k: how the first line begins, a line, and how that is said. One line
# of results.csv lacks its second bar.
_FLICKR = (
    (r"[^\t]+#\d+\t", r"([^\t]+)#\d+\t(.*)", "NAME#NUMBER, a tab and a caption"),
    (r"image_name\s*\|", r"([^|]+?)\s*\|\s*\d+(?:\s*\||\s)\s*(.*)", "NAME| NUMBER| caption"),
)


def is_json(path: Path) -> bool:
    """Whether a caption file is one JSON document."""
    return not (path.is_dir() or path.suffix in (".jsonl", *TABLES))


def captions_file(path: Path) -> Path:
    """The file of a folder that describes its photos, where it has one; else the path as it is."""
    return next((path / name for name in METADATA if (path / name).is_file()), path)


def read_rows(path: Path, split: Optional[str]) -> Iterator[Row]:
    """The rows of a file or folder; of Karpathy's file those of `split`. Raises UserError."""
    if path.is_dir():
        return _folder_rows(path)
    text = read_text(path)
    if path.suffix == ".jsonl":
        return ((f"line {number}", row) for number, row in parse_json_lines(text.split("\n"), path))
    if path.suffix in TABLES:
        for first, line, shape in _FLICKR:
            if re.match(first, text):
                return _flickr_rows(text, re.compile(line), shape, path)
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
    """Photos with a text file beside each, a line a caption."""
    photos = list(map(Path, images_in(str(folder))))
    if not photos:
        raise UserError(f"{folder}: a folder without photos and without {METADATA[0]}")
    lacking = [photo for photo in photos if not photo.with_suffix(".txt").is_file()]
    if lacking:
        raise UserError(
            f"{folder}: {len(lacking)} of {len(photos)} photos have no .txt beside them, the first "
            f"is {lacking[0]}: write their captions there, or put them elsewhere"
        )
    for photo in photos:
        captions = read_text(photo.with_suffix(".txt")).strip().split("\n")
        image = photo.relative_to(folder).as_posix()
        yield image, {"image": image, "captions": captions}


def _flickr_rows(text: str, line: re.Pattern, shape: str, path: Path) -> Iterator[Row]:
    for number, content in enumerate(text.split("\n"), start=1):
        if not content.strip() or (number == 1 and not line.fullmatch(content)):
            continue
        found = line.fullmatch(content)
        if not found:
            raise UserError(f"{path}: line {number} is not {shape}: mend it")
        yield f"line {number}", {"image": found[1], "caption": found[2]}


def _table_rows(text: str, path: Path) -> Iterator[Row]:
    delimiter = "\t" if "\t" in text.partition("\n")[0] else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = {name.strip() for name in reader.fieldnames or ()}
        wanted = {"image": IMAGE_NAMES, "caption": CAPTION_NAMES}
        missing = [kind for kind, names in wanted.items() if columns.isdisjoint(names)]
        if missing:
            raise UserError(
                f"{path}: line 1 names no column {' and '.join(sorted(missing))}: "
                "expected image,caption or image,caption,image_id"
            )
        reader.fieldnames = [name.strip() for name in reader.fieldnames]
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


def _coco_rows(images: list, annotations: list, path: Path) -> Iterator[Row]:
    captions: defaultdict[Any, list] = defaultdict(list)
    try:
        for number, entry in enumerate(annotations, start=1):
            where, lacks = f"row {number} of annotations", "image_id or caption"
            captions[entry["image_id"]].append(entry["caption"])
        for number, entry in enumerate(images, start=1):
            where, lacks = f"row {number} of images", "id or file_name"
            image_id = entry["id"]
            found = {"image": entry["file_name"], "image_id": image_id}
            yield where, {**found, "captions": captions.pop(image_id, [])}
    except (KeyError, TypeError):
        raise UserError(f"{path}: {where} lacks {lacks}: expected {FORMATS}") from None
    if captions:
        raise UserError(f"{path}: images has no id {next(iter(captions))!r}, which has captions")


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
                f"{path}: {where} lacks filename, split or sentences with raw: expected {FORMATS}"
            ) from None
        if split is None or entry_split in wanted:
            image_id = entry.get("cocoid", entry.get("imgid"))
            yield where, {"image": image, "captions": sentences, "image_id": image_id}
