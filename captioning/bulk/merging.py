"""The parts of all shards put together, in the order of the plan, and as a parquet file."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioning.bulk import jsonl
from captioning.bulk.planning import BASE
from captioning.bulk.request import Request
from captioning.bulk.shards import Part, Plan
from captioning.files.manifest import Hashed
from captioning.files.writing import staged

ROWS = 10_000  # of a parquet file that are held at once


def merge(request: Request, plan: Plan) -> tuple[int, int]:
    """Write `out` and `failed`, then `marker`. Raises OSError.

    Returns how many images of the plan have captions, and how many failed.

    Killed at any instant and called again it gives the same files.
    """
    parts = [Part(request.parts, shard) for shard in range(len(plan))]
    again = set() if request.keeps() else {line["image"] for line in _lines(parts)}
    base = (
        line for line in jsonl.read(request.parts / BASE) if line and line["image"] not in again
    )
    images = 0
    with staged(request.out) as file:
        out = Hashed(file)
        for line in itertools.chain(base, _lines(parts)):
            if "error" not in line:
                out.write(jsonl.encode(line))
                images += 1
    counts = [part.counts() for part in parts]
    tars = {part["tar"]: part for part in counts if "tar" in part}
    failed = _write_failed(request, parts, set(tars))
    if request.marker.exists():
        tars = {**json.loads(request.marker.read_text(encoding="utf-8")).get("tars", {}), **tars}
    content = {"images": images, "failed": failed, "tars": tars, **out.manifest()}
    jsonl.write(request.marker, [content])
    return tuple(sum(part[what] for part in counts) for what in ("images", "failed"))


def _lines(parts: list[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        yield from jsonl.read(part.path)


def _write_failed(request: Request, parts: list[Part], tars: set[str]) -> int:
    """Write `failed` with what other calls have put there; how many failures of this one's."""
    old = [line for line in jsonl.read(request.failed) if line]
    others = [line for line in old if line.get("out") != request.out.name]
    own = {line["image"]: line for line in old if line.get("out") == request.out.name}
    for line in _lines(parts):
        own.pop(line["image"], None)
        if "error" in line:
            own[line["image"]] = {**line, "out": request.out.name}
    for tar in tars:
        if tar in own and not any(line["image"] == tar for line in _lines(parts)):
            del own[tar]
    if others or own:
        jsonl.write(request.failed, [*others, *own.values()])
    else:
        request.failed.unlink(missing_ok=True)
    return len(own)


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
