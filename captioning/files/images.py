"""Recognises image files by name, finds them in folders and lists, and detects harmful JPEGs."""

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any, BinaryIO, NamedTuple, Optional, Union

from captioning.files import stores, tables
from captioning.files.reading import StrPath, parse_json_lines, read_json
from captioning.runtime.errors import UserError

# {Pillow's name of a supported format: its file suffixes}. EPS is not supported, because Pillow
# would let Ghostscript run the program that an EPS file contains.
FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k", ".jpx"),
}
SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)

# A JPEG can have one scan per ten bytes, and a decoder processes all pixels for each scan, so that
# a small file could take very long. Encoders write about ten scans; libtiff also allows 100.
# Metadata is split into segments of up to 64 kB, so that 60 MB of metadata are about 1000 segments.
MAX_SCANS, MAX_SEGMENTS = 100, 10_000
_PIECE = 1 << 14
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # excludes stuffed zeros and restart markers
# Marker codes: SOF0 and SOF1 (sequential frames), SOS, EOI, and TEM, which has no length field.
_SEQUENTIAL, _SCAN, _END, _ALONE = (0xC0, 0xC1), 0xDA, 0xD9, 0x01

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


def is_image(name: str) -> bool:
    """Return whether a file's name has the suffix of an image. Case does not matter."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def has_many_scans(file: BinaryIO) -> bool:
    """Return whether the first JPEG in a file exceeds MAX_SCANS or MAX_SEGMENTS.

    Looks only at markers and headers, and decodes no pixels.
    """
    at, scans, segments, components = 2, 0, 0, None
    while scans <= MAX_SCANS and segments <= MAX_SEGMENTS:
        file.seek(at)
        piece = file.read(_PIECE)
        found = _MARKER.search(piece)
        if found is None:
            if len(piece) < _PIECE:
                return False  # the file is truncated
            at += _PIECE - 1  # the last byte may be the first of a marker
            continue
        marker, at = piece[found.end() - 1], at + found.end()
        segments += 1
        if marker == _END:
            return False
        if marker == _ALONE:
            continue
        file.seek(at)
        header = file.read(8)
        if marker in _SEQUENTIAL:
            components = header[7:8]
        elif marker == _SCAN:
            scans += 1
            # In a sequential JPEG, a scan of all components is the only scan.
            if scans == 1 and header[2:3] == components:
                return False
        at += max(int.from_bytes(header[:2], "big"), 2)
    return True


def images_in(folder: str, recursive: bool = True, glob: Optional[str] = None) -> Iterator[str]:
    """Yield the paths of a folder's images, sorted by name, without hidden files.

    glob: a pattern that selects the files; they may then have any suffix. A pattern with a slash is
    compared with the path relative to `folder`, another pattern with the file name. A symbolic link
    is followed, unless it leads to a folder that contains the link. Raises UserError.
    """
    if stores.is_store(folder):
        return _in_store(folder.rstrip("/"), recursive, glob)
    return _in_folder(folder, "", recursive, glob, frozenset())


def _in_store(folder: str, recursive: bool, glob: Optional[str]) -> Iterator[str]:
    for address in stores.list_files(folder, recursive):
        relative = address[len(folder) + 1 :]
        if "/." not in f"/{relative}" and _is_wanted(relative, glob):
            yield address


def _is_wanted(relative: str, glob: Optional[str]) -> bool:
    if glob is None:
        return is_image(relative)
    return fnmatch(relative if "/" in glob else os.path.basename(relative), glob)


def _in_folder(folder, within, recursive, glob, above) -> Iterator[str]:
    """Yield the wanted files in a folder. within: its path relative to the outermost folder.

    above: (device, inode) of the folders that contain this folder, to detect cycles of links.
    """
    state = os.stat(folder)
    if (state.st_dev, state.st_ino) in above:
        return
    above |= {(state.st_dev, state.st_ino)}
    try:
        with os.scandir(folder) as found:
            entries = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}") from error
    for name, is_folder in entries:
        if name.startswith("."):
            continue
        path, relative = os.path.join(folder, name), os.path.join(within, name)
        if not is_folder and _is_wanted(relative, glob):
            yield path
        elif is_folder and recursive:
            yield from _in_folder(path, relative, recursive, glob, above)


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
    `prompt_of`. Only `.json` files are read at once; other lists are read row by row. Raises
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
    return ListedImage(image, image_id, True, prompt_of(fields, where, template))


def prompt_of(fields: Mapping[str, Any], where: str, template: Optional[str]) -> Optional[str]:
    """Return the prompt of a row, or None.

    template: the value of --prompt. Without a template, the prompt is the row's field `prompt`. In
    a template such as "a {colour} bird", {colour} is replaced by the row's field `colour`. For a
    template without columns the result is None: the caller uses the template for all images. Raises
    UserError.
    """
    if template is None:
        return prompt_in(fields, where)
    if not has_columns(template):
        return None
    try:
        return _COLUMN.sub(lambda match: str(fields[match[1]]), template)
    except KeyError as error:
        names = ", ".join(map(str, fields))
        raise UserError(f"{where} has no column {error} of --prompt, only {names}") from None


def prompt_in(fields: Mapping[str, Any], where: str) -> Optional[str]:
    """Return the prompt of a row; None if it has none. Raises UserError if it is not text.

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
