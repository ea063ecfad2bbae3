"""Reads earlier output files, merges the lines of a plan into them, and exports them."""

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from captioning.bulk.plan import Line, Plan, captions_of
from captioning.bulk.request import Request
from captioning.bulk.sidecars import Sidecars
from captioning.bulk.tar_writing import write_samples
from captioning.files import stores
from captioning.files.reading import parse_line
from captioning.files.stores import key_of
from captioning.files.writing import json_line
from captioning.runtime.errors import UserError

ROWS = 10_000  # rows that are held in memory while the Parquet file is written


@dataclass(frozen=True)
class Earlier:
    """What earlier calls have done.

    - done: {key (see `key_of`) of an image whose captions are kept: hash of its prompt}
    - again: the keys of images in tars that are captioned again, because they failed, or because
      another filter dropped their captions
    - failed: the keys of images that are not captioned again, because they failed
    - tars: {key: stamp} of tars whose images are all done
    - settings: the settings of the last run
    """

    done: dict[str, int] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    tars: dict[str, stores.Stamp] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def lines_of(request: Request, name: str) -> Iterator[Line]:
    """Yield the lines of an output file, each image once. Yields nothing without the file.

    Raises UserError for a line that is damaged or repeats an image; --verify leaves it out.
    """
    if not stores.exists(name):
        return
    seen = set()
    with stores.open_file(name) as file:
        for number, text in enumerate(file, 1):
            line = parse_line(text) or {}
            image = line.get("image")
            if isinstance(image, str) and ("error" in line or isinstance(line.get("caption"), str)):
                key = key_of(image)
                if key not in seen:
                    seen.add(key)
                    yield line
                    continue
            if not request.verify:
                raise UserError(
                    f"{name}: line {number} is damaged, or repeats an image: --verify leaves such "
                    "lines out"
                )


def read_earlier(request: Request, settings: dict[str, Any]) -> Earlier:
    """Return what earlier calls have done. Raises UserError."""
    marker = json.loads(stores.read_if_any(request.marker) or b"{}")
    lines = lines_of(request, request.out)
    done = {key_of(line["image"]): hash(line.get("prompt")) for line in lines}
    again, failed = set(), set()
    for line in lines_of(request, request.filtered):
        used, key = line.get("settings") or {}, key_of(line["image"])
        is_same = all(used.get(name) == settings.get(name) for name in ("filter", "itm_model"))
        if is_same:
            done.setdefault(key, hash(line.get("prompt")))
        elif key not in done:
            again.add(key)
    for line in lines_of(request, request.failed):
        key = key_of(line["image"])
        if key not in done:
            (again if request.retry_failed else failed).add(key)
    read = {} if request.verify else marker.get("tars", {})
    known = {key_of(url): stamp for url, stamp in read.items()}
    return Earlier(done, again, failed, known, marker.get("settings", {}))


def first_tar(request: Request) -> int:
    """Return the number of the first output tar: one more than the highest in the folder."""
    names = stores.names_in(request.write_shards) if request.write_shards else ()
    numbers = (int(name[:-4]) for name in names if name[:-4].isdecimal() and name.endswith(".tar"))
    return max(numbers, default=-1) + 1


def tar_of(plan: Plan, unit: int) -> str:
    folder = plan.header["settings"]["write_shards"]
    return stores.join(folder, f"{plan.header['first_tar'] + unit:05d}.tar")


def write_tar(request: Request, plan: Plan, unit: int, last: list[Line]) -> None:
    """Write the output tar of a unit. last: its last lines, which are not kept yet."""
    kept = (request.split(line).kept for line in itertools.chain(plan.lines(unit), last))
    with stores.create(tar_of(plan, unit)) as file:
        number = plan.header["first_tar"] + unit
        write_samples(file, number, list(filter(None, kept)), plan.unit(unit).get("tar"))


def merge(request: Request, plan: Plan) -> Counter:
    """Write `out`, `filtered`, `failed`, then `marker`; return how many images are in which.

    All units must be done. Lines of images that are in the plan replace earlier lines, so that a
    repeated call, such as after a kill, writes the same files. Raises UserError.
    """
    counts, finished = Counter(), plan.header["tars"].copy()
    earlier, planned = list(filter(stores.exists, request.outputs)), set(map(key_of, finished))
    if earlier:
        planned.update(key_of(line["image"]) for line in plan.all_lines())
    with contextlib.ExitStack() as files:
        opened: dict[str, BinaryIO] = {}

        def write(name: str, line: Line) -> None:
            if name not in opened:
                opened[name] = files.enter_context(stores.create(name))
            opened[name].write(json_line(line))

        opened[request.out] = files.enter_context(stores.create(request.out))
        for name in earlier:
            for line in lines_of(request, name):
                if key_of(line["image"]) not in planned:
                    write(name, line)
        for line in plan.all_lines():
            kept, dropped = request.split(line)
            if "error" in line:
                write(request.failed, line)
                finished.pop(line["image"], None)  # the tar itself
            if kept:
                write(request.out, kept)
                counts["cut"] += sum(kept.get("cuts", [kept.get("cut", False)]))
            if dropped:
                write(request.filtered, dropped)
            counts["captioned" if kept else "filtered" if dropped else "failed"] += 1
        for name in set(request.outputs) - opened.keys():
            stores.remove(name)
    marker = json.loads(stores.read_if_any(request.marker) or b"{}")
    known = {**marker.get("tars", {}), **finished}
    used = plan.header["settings"] if len(plan) or not marker else marker["settings"]
    stores.put(json_line({"settings": used, "tars": known}), request.marker)
    return counts


def export(request: Request, plan: Plan) -> None:
    """Write sidecars, metadata.jsonl and the Parquet file from `out`. Raises UserError."""
    if request.sidecar:
        again = (request.split(line).kept for line in plan.all_lines())
        lines = lines_of(request, request.out) if request.skips_existing else filter(None, again)
        Sidecars(request).write(lines)
    if request.metadata:
        with stores.create(request.metadata) as file:
            for line in lines_of(request, request.out):
                name = path_beside(line["image"], request.metadata)
                file.write(json_line({"file_name": name, "text": line["caption"]}))
    if request.parquet:
        _write_parquet(request)


def path_beside(image: str, metadata: str) -> str:
    """Return the path of an image relative to the folder of metadata.jsonl.

    Raises UserError if the image is not in that folder.
    """
    folder = metadata.rpartition("/")[0] or "."
    name = os.path.relpath(image, folder)  # of two addresses, too
    if name.startswith("../") or stores.is_store(image) != stores.is_store(folder):
        raise UserError(
            f"--metadata: {image} is not in the folder of {metadata}, from which its readers load "
            "images: write it to the images' folder"
        )
    return name


def _write_parquet(request: Request) -> None:
    """Write the captions as a Parquet file.

    Columns: image, image_id, caption, captions (a list), score, checkpoint, settings (JSON), and
    itm with a filter.
    """
    import pyarrow as pa
    from pyarrow import parquet

    text = ("image", "image_id", "caption", "checkpoint", "settings")
    numbers = ("score", "itm") if request.filter else ("score",)
    columns = [*((name, pa.string()) for name in text), ("captions", pa.list_(pa.string()))]
    schema = pa.schema([*columns, *((name, pa.float64()) for name in numbers)])
    lines = lines_of(request, request.out)
    with stores.create(request.parquet) as file, parquet.ParquetWriter(file, schema) as writer:
        while rows := [_parquet_row(line) for line in itertools.islice(lines, ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _parquet_row(line: Line) -> Line:
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
