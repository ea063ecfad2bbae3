"""Image files: by their names in a folder, those within it, and lists; the scans of a JPEG."""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Optional, Union

from captioning.files import stores
from captioning.files.reading import parse_json, read_json
from captioning.runtime.errors import UserError

# The formats that are read, by Pillow's names, each with the suffixes that its files have. Of EPS,
# which is none of them, Pillow would have Ghostscript run what is in the file.
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

# Each scan of a JPEG, of which ten bytes are one, is decoded into all of its pixels. Encoders write
# about ten; libtiff's bound is the same. Segments are a thousand in files of 60 MB at most.
MOST_SCANS, MOST_SEGMENTS = 100, 10_000
_PIECE = 1 << 14
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # within a scan are zeros and restarts, too
_SEQUENTIAL, _SCAN, _END, _ALONE = (0xC0, 0xC1), 0xDA, 0xD9, 0x01

LISTS = (".txt", ".csv", ".json", ".jsonl")
PATH_COLUMNS = ("image", "path", "file_name", "filename", "filepath", "image_path", "file")
ID_COLUMNS = ("image_id", "id")


class Listed(NamedTuple):
    """An image file that a list names. in_row: among other fields, as in an annotation file."""

    image: str
    image_id: Union[int, str, None] = None
    in_row: bool = False


def is_image(name: str) -> bool:
    """Whether a file's name has the suffix of an image, in capitals or not."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def has_many_scans(file: BinaryIO) -> bool:
    """Whether a JPEG, the first of its file, has more than MOST_SCANS or MOST_SEGMENTS.

    Its markers are read, as a decoder would, and nothing is decoded.
    """
    at, count, segments, components = 2, 0, 0, None
    while count <= MOST_SCANS and segments <= MOST_SEGMENTS:
        file.seek(at)
        piece = file.read(_PIECE)
        found = _MARKER.search(piece)
        if found is None:
            if len(piece) < _PIECE:
                return False  # it was cut off
            at += _PIECE - 1  # the last byte may be a marker's first
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
            count += 1
            if count == 1 and header[2:3] == components:  # all: a decoder reads no further
                return False
        at += max(int.from_bytes(header[:2], "big"), 2)
    return True


def images_in(folder: str, recursive: bool = True, glob: Optional[str] = None) -> Iterator[str]:
    """Yield the paths of a folder's images, in the order of their names; hidden ones are left out.

    glob: the files that are meant, whatever their suffix: by name, or, with a slash in it, by the
    path from the folder. Links are followed, but not to a folder that they lie in.

    Raises UserError.
    """
    if stores.is_store(folder):
        return _in_store(folder.rstrip("/"), recursive, glob)
    return _in_folder(folder, "", recursive, glob, frozenset())


def _in_store(folder: str, recursive: bool, glob: Optional[str]) -> Iterator[str]:
    for address in stores.listed(folder, recursive):
        within = address[len(folder) + 1 :]
        names = within.split("/")
        if not any(name.startswith(".") for name in names) and _is_meant(within, names[-1], glob):
            yield address


def _is_meant(within: str, name: str, glob: Optional[str]) -> bool:
    return is_image(name) if glob is None else fnmatch(within if "/" in glob else name, glob)


def _in_folder(folder, within, recursive, glob, above) -> Iterator[str]:
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
        if is_folder:
            if recursive:
                yield from _in_folder(path, relative, recursive, glob, above)
        elif _is_meant(relative, name, glob):
            yield path


def read_list(path: Union[str, Path], column: Optional[str] = None) -> Iterator[Listed]:
    """Yield the images of a list, as it names them, those that it names twice twice.

    - `.txt`: an image file a line;
    - `.csv`, `.jsonl`, a JSON list of objects, or COCO's {images: [...]}: the file is in `column`,
      or else in the first of PATH_COLUMNS that there is, an id in ID_COLUMNS;
    - a JSON list of files, or {id: file}.

    Raises UserError.
    """
    readers = {".txt": _text, ".csv": _csv, ".jsonl": _jsonl}
    return readers.get(os.path.splitext(path)[1], _json)(path, column)


def _text(path: Union[str, Path], column: Optional[str]) -> Iterator[Listed]:
    return (Listed(line.strip()) for line in _lines(path) if line.strip())


def _csv(path: Union[str, Path], column: Optional[str]) -> Iterator[Listed]:
    reader = csv.DictReader(_lines(path, newline=""), strict=True)
    try:
        for row in reader:
            yield _listed(row, f"{path}: line {reader.line_num}", column)
    except csv.Error as error:
        raise UserError(f"{path}: not valid CSV at line {reader.line_num + 1}: {error}") from None


def _jsonl(path: Union[str, Path], column: Optional[str]) -> Iterator[Listed]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            row = parse_json(line.rstrip("\n"), path, first_line=number)
            yield _listed(row, f"{path}: line {number}", column)


def _json(path: Union[str, Path], column: Optional[str]) -> Iterator[Listed]:
    document = read_json(path)
    if isinstance(document, dict) and isinstance(document.get("images"), list):
        document = document["images"]
    if isinstance(document, dict):
        if not all(isinstance(name, str) for name in document.values()):
            raise UserError(f"{path}: expected a list of images, or {{image id: image file}}")
        return (Listed(name, image_id) for image_id, name in document.items())
    rows: Iterable[Any] = document if isinstance(document, list) else [document]
    return (_listed(row, f"{path}: row {number}", column) for number, row in enumerate(rows, 1))


def _listed(row: Any, where: str, column: Optional[str]) -> Listed:
    if isinstance(row, str):
        return Listed(row)
    fields = row if isinstance(row, Mapping) else {}
    names = (column,) if column else PATH_COLUMNS
    image = next((fields[name] for name in names if fields.get(name)), None)
    if not isinstance(image, str):
        wanted = column or f"one of {', '.join(PATH_COLUMNS)}"
        raise UserError(
            f"{where} names no image: looked for {wanted}; rename the column, or name it with "
            "--column of captioning.caption"
        )
    ids = (fields[name] for name in ID_COLUMNS if fields.get(name) not in (None, ""))
    image_id = next(ids, None)
    return Listed(image, image_id if type(image_id) in (int, str) else None, in_row=True)


def _lines(path: Union[str, Path], newline: Optional[str] = None) -> Iterator[str]:
    try:
        with io.TextIOWrapper(stores.opened(str(path)), "utf-8-sig", newline=newline) as file:
            yield from file
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason}: convert it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
