"""Reads rows of data sets that contain images: Parquet files, and Arrow files saved by `datasets`.

Row 12 of birds.parquet is the image `birds.parquet/12`. The datasets library converts a Parquet
file once to a memory-mapped file in the cache folder, so that a row is read without other rows.
"""

import glob
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from captioning.files.cache import cache_folder, local
from captioning.files.reading import StrPath
from captioning.files.stores import is_store, matching
from captioning.runtime.errors import UserError, one_line

IMAGE = "image"  # the name of the column with images
_TABLE = r"(?i:\.(?:parquet|arrow))"
_ROW = re.compile(rf"(.+{_TABLE})/(\d+)", re.DOTALL)


def is_table(name: StrPath) -> bool:
    """Return whether a name ends in .parquet or .arrow, or is a folder made by `save_to_disk`."""
    return bool(re.search(rf"{_TABLE}\Z", str(name))) or os.path.isfile(Path(name, "state.json"))


def is_row(name: StrPath) -> bool:
    return bool(_ROW.fullmatch(str(name)))


def rows(name: StrPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name of the image, fields) of each row, without reading the images.

    name: a file, a pattern such as data/train-*.parquet, or a folder of `Dataset.save_to_disk`.
    Raises UserError.
    """
    for file in _files(str(name)):
        data = _opened(file)
        plain = [n for n, kind in data.features.items() if not hasattr(kind, "decode_example")]
        columns = data.select_columns(plain)  # without IMAGE
        for number in range(len(data)):
            row = f"{file}/{number}"
            yield row, {**(columns[number] if columns.column_names else {}), IMAGE: row}


def image_bytes(name: StrPath) -> bytes:
    """Return the content of the image file in a row. Raises UserError, OSError."""
    file, number = _ROW.fullmatch(str(name)).groups()
    data = _opened(file)
    if int(number) >= len(data):
        raise UserError(f"{name}: no such row: {file} has {len(data)}")
    content = (data[int(number)][IMAGE] or {}).get("bytes")
    if not content:
        raise UserError(
            f"{name}: the row has no image: leave it out, or embed it, as save_to_disk and "
            "push_to_hub of datasets do, and its to_parquet does not"
        )
    return content


def _files(name: str) -> list[str]:
    pattern = (
        name if re.search(rf"{_TABLE}\Z", name) else os.path.join(glob.escape(name), "*.arrow")
    )
    if is_store(pattern):
        return matching(pattern) if "*" in pattern else [pattern]
    files = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
    if not files:
        raise UserError(f"{name}: no such file: put it there, or correct the path")
    return files


@cache
def _opened(file: str) -> Any:
    """Return a file as a `Dataset` whose images are not decoded. Raises UserError."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{file} needs the datasets library: pip install datasets") from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the logged errors are also raised
    copy = str(local(file))
    try:
        if file.lower().endswith(".arrow"):
            data = datasets.Dataset.from_file(copy)
        else:
            data = datasets.Dataset.from_parquet(copy, cache_dir=str(cache_folder() / "datasets"))
        kind = data.features.get(IMAGE)
        if kind is None or kind == datasets.Value("string"):
            names = ", ".join(data.column_names)
            raise UserError(
                f"{file} has no column {IMAGE} with image files, only {names}: rename the one with "
                "images; give paths in a list (.csv, .jsonl), or embed the images"
            )
        return data.cast_column(IMAGE, datasets.Image(decode=False))
    except UserError:
        raise
    except Exception as error:  # the library wraps the errors of pyarrow
        reason = one_line(error.__cause__ or error)
        raise UserError(f"{file}: cannot be read ({reason}): write or download it again") from None
