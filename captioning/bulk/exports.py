"""Parquet, metadata.jsonl and kohya's JSON, written from the merged captions."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from captioning.bulk.filtering import parse
from captioning.bulk.request import Request
from captioning.bulk.shards import Line, captions_of
from captioning.data.formats import METADATA
from captioning.files import stores
from captioning.files.reading import parse_json, parse_line, read_lines
from captioning.files.uploads import written
from captioning.files.writing import json_line
from captioning.runtime.errors import UserError

ROWS = 10_000  # held in memory while the Parquet file is written


def check(request: Request) -> None:
    """Raise UserError if a file of `write_all` belongs to another program or cannot be written."""
    if request.metadata:
        if os.path.basename(request.metadata) != METADATA[0]:
            raise UserError(f"--metadata is {request.metadata}; its name has to be {METADATA[0]}")
        first = _content(request.metadata).partition(b"\n")[0]
        if first and "checkpoint" not in (parse_line(first) or {}):
            raise UserError(
                f"--metadata: {request.metadata} has captions of another program: move it away"
            )
    if request.kohya:
        _kohya(request.kohya)


def write_all(request: Request) -> None:
    """Write the files that the request names. Each is written atomically. OSError, UserError."""
    if request.parquet:
        metric = parse(request.filter).metric if request.filter else None
        write_parquet(request.out, request.parquet, metric)
    if request.metadata:
        with written(request.metadata) as file:
            for line in _lines(request.out):
                name = relative(line["image"], request.metadata)
                row = {"file_name": name, "text": line["caption"], "checkpoint": line["checkpoint"]}
                file.write(json_line(row))
    if request.kohya:
        content = _kohya(request.kohya)
        for line in _lines(request.out):
            image = line["image"]
            image = image if stores.is_store(image) else os.path.abspath(image)
            content[image] = {**content.get(image, {}), "caption": line["caption"]}
        with written(request.kohya) as file:
            file.write(json.dumps(content, indent=2).encode() + b"\n")


def relative(image: str, metadata: str) -> str:
    """The name of an image in the folder of metadata.jsonl. Raises UserError if it is elsewhere."""
    folder = metadata.rpartition("/")[0] or "."
    if stores.is_store(folder):
        name = image.removeprefix(folder + "/")
        outside = name == image
    else:
        name = os.path.relpath(image, folder)
        outside = name.startswith("..") or stores.is_store(image)
    if outside:
        raise UserError(
            f"--metadata: {image} is not in the folder of {metadata}, from which its readers load "
            "images: write it to the images' folder"
        )
    return name


def _lines(out: Path) -> Iterator[Line]:
    return filter(None, read_lines(out))


def _content(name: str) -> bytes:
    try:
        return stores.whole(name)
    except (FileNotFoundError, stores.Missing):
        return b""


def _kohya(name: str) -> dict[str, dict[str, Any]]:
    """kohya's metadata, {image: {"caption", "tags", ...}}; empty without a file. UserError."""
    content = parse_json((_content(name) or b"{}").decode("utf-8", "replace"), name)
    if not isinstance(content, dict) or not all(isinstance(row, dict) for row in content.values()):
        raise UserError(f"--kohya: {name} is not kohya's metadata, {{image: {{caption}}}}")
    return content


def write_parquet(captions: Path, name: str, metric: Optional[str] = None) -> None:
    """Write the captions as a Parquet file. name: a path or an address. Raises OSError, UserError.

    Columns: image, image_id, caption, captions (a list), score, checkpoint, settings (JSON), and
    the filter's `metric`, if given.
    """
    import pyarrow as pa
    from pyarrow import parquet

    text = ("image", "image_id", "caption", "checkpoint", "settings")
    others = [("captions", pa.list_(pa.string())), ("score", pa.float64())]
    if metric:
        others.append((metric, pa.float64()))
    schema = pa.schema([*((name, pa.string()) for name in text), *others])
    lines = _lines(captions)
    with written(name) as file, parquet.ParquetWriter(file, schema) as writer:
        while rows := [_row(line) for line in itertools.islice(lines, ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _row(line: Line) -> Line:
    image_id = line.get("image_id")
    return {
        **line,
        "image": printable(line["image"]),
        "image_id": None if image_id is None else str(image_id),
        "captions": captions_of(line),
        "settings": json.dumps(line.get("settings")),
    }


def printable(text: str) -> str:
    """The text with escapes in place of the bytes of a file name that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
