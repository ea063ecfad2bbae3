"""The captions as a parquet file."""

import itertools
import json
from pathlib import Path

from captioning.bulk import jsonl
from captioning.files.writing import staged

ROWS = 10_000  # that are held at once


def write_parquet(captions: Path, path: Path) -> None:
    """Columns: image, image_id, caption, captions (a list), score, checkpoint, settings (JSON).

    Raises OSError.
    """
    import pyarrow as pa
    from pyarrow import parquet

    text = ("image", "image_id", "caption", "checkpoint", "settings")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in text),
            ("captions", pa.list_(pa.string())),
            ("score", pa.float64()),
        ]
    )
    lines = filter(None, jsonl.read(captions))
    with staged(path) as file, parquet.ParquetWriter(file, schema) as writer:
        while rows := [_row(line) for line in itertools.islice(lines, ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _row(line):
    image_id = line.get("image_id")
    return {
        **line,
        "image": jsonl.printable(line["image"]),
        "image_id": None if image_id is None else str(image_id),
        "captions": line.get("captions", [line["caption"]]),
        "settings": json.dumps(line.get("settings")),
    }
