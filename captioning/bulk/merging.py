"""Merges the parts of all shards, in the order of the plan; writes the parquet file."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Callable, Optional

from captioning.bulk.request import Request
from captioning.bulk.shards import BASE, Line, Plan, captions_of
from captioning.files.manifest import Hashed
from captioning.files.reading import read_lines
from captioning.files.uploads import written
from captioning.files.writing import atomic_write, json_line, locked, write_lines

ROWS = 10_000  # of a parquet file that are in memory at once


def merge(request: Request, plan: Plan) -> tuple[int, int, int]:
    """Write `out`, `filtered` and `failed`, then `marker`. Raises OSError.

    Returns the numbers of images of the plan that have captions, that failed, and whose captions
    the filter dropped. After a kill at any instant it can be called again, and writes the same
    files.
    """
    parts = plan.parts()

    def made() -> Iterable[Line]:
        return itertools.chain.from_iterable(part.read() for part in parts)

    replaced = set() if request.skips_existing else {line["image"] for line in made()}
    base = read_lines(request.parts / BASE)
    base = (line for line in base if line and line["image"] not in replaced)
    images = 0
    with atomic_write(request.out, request.parts) as file:
        out = Hashed(file)
        for line in itertools.chain(base, request.kept(made())):
            if "error" not in line:
                out.write(json_line(line))
                images += 1
    _write_filtered(request, made)
    counts = [part.counts() for part in parts]
    tars = {part["tar"]: part for part in counts if "tar" in part}
    with locked(request.failed):  # other captions files in the folder share it
        failed = _write_failed(request, made(), set(tars))
    tars = {**next(read_lines(request.marker), {}).get("tars", {}), **tars}
    content = {"images": images, "failed": failed, "tars": tars, **out.manifest()}
    write_lines(request.marker, [content], request.parts)
    names = ("images", "failed", "filtered")
    return tuple(sum(part.get(name, 0) for part in counts) for name in names)


def _write_filtered(request: Request, made: Callable[[], Iterable[Line]]) -> None:
    """Write `filtered`, without the earlier lines of images that were captioned again."""
    if not (request.filter or request.filtered.exists()):
        return
    again = {line["image"] for line in made()}
    old = (line for line in read_lines(request.filtered) if line and line.get("image") not in again)
    dropped = filter(None, (request.split(line)[1] for line in made()))
    write_lines(request.filtered, itertools.chain(old, dropped), request.parts)
    if not request.filtered.stat().st_size:
        request.filtered.unlink()


def _write_failed(request: Request, made: Iterable[Line], tars: set[str]) -> int:
    """Write `failed`, keeping the lines of other captions files; returns the number of ours."""
    out = request.out.name
    old = [line for line in read_lines(request.failed) if line]
    others = [line for line in old if line.get("out") != out]
    own = {line["image"]: line for line in old if line.get("out") == out}
    own = {image: line for image, line in own.items() if image not in tars}  # read again
    for line in made:
        own.pop(line["image"], None)
        if "error" in line:
            own[line["image"]] = {**line, "out": out}
    if others or own:
        write_lines(request.failed, [*others, *own.values()], request.parts)
    else:
        request.failed.unlink(missing_ok=True)
    return len(own)


def write_parquet(captions: Path, name: str, metric: Optional[str] = None) -> None:
    """Columns: image, image_id, caption, captions (a list), score, checkpoint, settings (JSON).

    metric: of the filter, a further column. name: a path or an address. Raises OSError, UserError.
    """
    import pyarrow as pa
    from pyarrow import parquet

    text = ("image", "image_id", "caption", "checkpoint", "settings")
    others = [("captions", pa.list_(pa.string())), ("score", pa.float64())]
    if metric:
        others.append((metric, pa.float64()))
    schema = pa.schema([*((name, pa.string()) for name in text), *others])
    lines = filter(None, read_lines(captions))
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
    """The text with bytes of a file name that are not UTF-8 escaped."""
    return text.encode(errors="backslashreplace").decode()
