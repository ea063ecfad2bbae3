"""Exports the merged captions as Parquet, metadata.jsonl and kohya's JSON, with data set cards."""

import itertools
import json
import os
from collections.abc import Mapping
from typing import Any, Callable

from adapters import card
from captioning.bulk.request import Request
from captioning.bulk.shards import OutputLine, captions_of
from captioning.data.formats import METADATA
from captioning.files import stores
from captioning.files.reading import parse_json, parse_line, read_objects
from captioning.files.uploads import open_to_write
from captioning.files.writing import json_line
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# The Hub's names of data set sizes.
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
ROWS = 10_000  # rows that are held in memory while the Parquet file is written


def check_replaceable(request: Request) -> None:
    """Raise UserError if a file that `write_all` would replace was written by another program.

    Also raises UserError for a wrong name of metadata.jsonl. Called before the work starts.
    """
    if request.metadata:
        if os.path.basename(request.metadata) != METADATA[0]:
            raise UserError(f"--metadata is {request.metadata}; its name has to be {METADATA[0]}")
        first = stores.read_if_any(request.metadata).partition(b"\n")[0]
        if first and "checkpoint" not in (parse_line(first + b"\n") or {}):
            raise UserError(
                f"--metadata: {request.metadata} has captions of another program: move it away"
            )
    if request.kohya:
        _read_kohya(request.kohya)


def write_all(request: Request, model: Callable[[], Mapping[str, str]]) -> None:
    """Write the exports that the request names, and a data set card in each of their folders.

    Each file is written atomically. model: returns the rows of a card that describe the captioner,
    {title: value}. Raises OSError, UserError.
    """
    if request.parquet:
        write_parquet(request)
    if request.metadata:
        with open_to_write(request.metadata) as file:
            for line in read_objects(request.out):
                try:
                    name = path_beside(line["image"], request.metadata)
                except UserError:
                    continue  # an earlier call captioned this image, which is in another folder
                row = {"file_name": name, "text": line["caption"]}
                file.write(json_line({**row, "checkpoint": line.get("checkpoint")}))
    if request.kohya:
        content = _read_kohya(request.kohya)
        for line in read_objects(request.out):
            image = line["image"]
            image = image if stores.is_store(image) else os.path.abspath(image)
            content[image] = {**content.get(image, {}), "caption": line["caption"]}
        with open_to_write(request.kohya) as file:
            file.write(json.dumps(content, indent=2).encode() + b"\n")
    folders = [os.path.dirname(name or "") for name in (request.parquet, request.metadata)]
    # Without the folder "", the working directory, which gets no card.
    folders = list(filter(None, dict.fromkeys([*folders, request.write_shards])))
    if folders:
        count, rows = sum(1 for _ in read_objects(request.out)), model()
        for folder in folders:
            _write_card(request, folder, count, rows)


def _write_card(request: Request, folder: str, count: int, model: Mapping[str, str]) -> None:
    """Write the card of a folder, unless the folder has a card that another author has written.

    count: the number of images. model: see `write_all`.
    """
    from huggingface_hub import DatasetCardData

    name = stores.join(folder, card.NAME)
    before = stores.read_if_any(name).decode("utf-8", "replace")
    if before and not card.is_generated(before):
        log_line(f"{name} is kept: it was written by hand or by another program")
        return
    configs, (table_folder, table) = None, os.path.split(request.parquet or "")
    if table and table_folder == folder:
        configs = [{"config_name": "default", "data_files": table}]
    data = DatasetCardData(
        license=request.license,
        language=request.language,
        annotations_creators="machine-generated",
        size_categories=SIZES[min(max(len(str(count)) - 3, 0), len(SIZES) - 1)],
        task_categories=[card.TASK],
        configs=configs,
    )
    source = os.path.basename(stores.without_secrets(request.source).rstrip("/"))
    rows = {"captions": f"{count} images", "data": source, "licence": request.license, **model}
    with open_to_write(name) as file:
        file.write(card.card(os.path.basename(folder) or "captions", data.to_yaml(), rows).encode())


def path_beside(image: str, metadata: str) -> str:
    """Return the path of an image relative to the folder of metadata.jsonl.

    image, metadata: paths or addresses. Raises UserError if the image is not in that folder.
    """
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


def _read_kohya(name: str) -> dict[str, dict[str, Any]]:
    """Return the content of kohya's metadata file, {image: {"caption", "tags", ...}}.

    Returns {} if there is no file. Raises UserError.
    """
    content = parse_json((stores.read_if_any(name) or b"{}").decode("utf-8", "replace"), name)
    if not isinstance(content, dict) or not all(isinstance(row, dict) for row in content.values()):
        raise UserError(f"--kohya: {name} is not kohya's metadata, {{image: {{caption}}}}")
    return content


def write_parquet(request: Request) -> None:
    """Write the captions as a Parquet file. Raises OSError, UserError.

    Columns: image, image_id, caption, captions (a list), score, checkpoint, settings (JSON), and
    itm with a filter.
    """
    import pyarrow as pa
    from pyarrow import parquet

    text = ("image", "image_id", "caption", "checkpoint", "settings")
    numbers = ("score", "itm") if request.filter else ("score",)
    fields = [*((name, pa.string()) for name in text), ("captions", pa.list_(pa.string()))]
    schema = pa.schema([*fields, *((name, pa.float64()) for name in numbers)])
    lines = read_objects(request.out)
    with open_to_write(request.parquet) as file, parquet.ParquetWriter(file, schema) as writer:
        while rows := [_parquet_row(line) for line in itertools.islice(lines, ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _parquet_row(line: OutputLine) -> OutputLine:
    image_id = line.get("image_id")
    return {
        **line,
        "image": printable(line["image"]),
        "image_id": None if image_id is None else str(image_id),
        "captions": captions_of(line),
        "settings": json.dumps(line.get("settings")),
    }


def printable(text: str) -> str:
    """Return the text with escapes for bytes that are not valid UTF-8, as in some file names."""
    return text.encode(errors="backslashreplace").decode()
