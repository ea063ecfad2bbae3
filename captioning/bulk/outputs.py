"""Reads earlier output files, merges the lines of a plan into them, and exports them."""

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from captioning.bulk.filtering import split
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


class Earlier(NamedTuple):
    """What earlier calls have done.

    - done: {key (see `key_of`) of an image that is not captioned again: hash of its prompt}
    - tars: {key: stamp} of tars whose images are all done
    - settings: the settings of the last run
    """

    done: dict[str, int]
    tars: dict[str, stores.Stamp]
    settings: dict[str, Any]


def lines_of(name: str) -> Iterator[Line]:
    """Yield the lines of an output file; nothing without the file. Raises UserError."""
    if not stores.exists(name):
        return
    with stores.open_file(name) as file:
        for number, text in enumerate(file, 1):
            line = parse_line(text) or {}
            if not ("image" in line and ("error" in line or "caption" in line)):
                raise UserError(f"{name}: line {number} is damaged: remove it")
            yield line


def read_earlier(request: Request, settings: dict[str, Any]) -> Earlier:
    """Return what earlier calls have done. Raises UserError."""

    def is_done(name: str, line: Line) -> bool:
        used = line.get("settings") or {}
        is_same = all(used.get(key) == settings.get(key) for key in ("filter", "itm_model"))
        return (
            not request.retry_failed if name == request.failed else is_same or name == request.out
        )

    done, again = {}, False
    for name in request.outputs:
        for line in lines_of(name):
            key = key_of(line["image"])
            if key not in done and is_done(name, line):
                done[key] = hash(line.get("prompt"))
            again |= key not in done
    marker = _marker(request)
    # Images that are captioned again may be in any tar.
    return Earlier(done, {} if again else marker["tars"], marker["settings"])


def _marker(request: Request) -> dict[str, Any]:
    """Return the content of the marker, which counts only beside captions."""
    content = stores.read_if_any(request.marker) if stores.exists(request.out) else b""
    return json.loads(content or b'{"settings": {}, "tars": {}}')


def first_tar(request: Request) -> int:
    """Return the number of the first output tar: one more than the highest in the folder."""
    names = stores.names_in(request.write_shards) if request.write_shards else ()
    stems = (name[:-4] for name in names if name.endswith(".tar"))
    return max((int(stem) for stem in stems if stem.isdecimal()), default=-1) + 1


def tar_of(plan: Plan, unit: int) -> str:
    folder = plan.header["settings"]["write_shards"]
    return stores.join(folder, f"{plan.header['first_tar'] + unit:05d}.tar")


def remove_tars(plan: Plan) -> None:
    """Remove the output tars of a plan that is abandoned, unless all units are done.

    Its captions are merged, or are about to be, if they are.
    """
    if plan.left() and plan.header["settings"]["write_shards"]:
        for unit in range(len(plan)):
            stores.remove(tar_of(plan, unit))


def write_tar(request: Request, plan: Plan, unit: int, last: list[Line]) -> None:
    """Write the output tar of a unit. last: its last lines, which are not kept yet."""
    lines = itertools.chain(plan.lines(unit), last)
    kept = filter(None, (split(line, request.filter)[0] for line in lines))
    with stores.create(tar_of(plan, unit)) as file:
        number = plan.header["first_tar"] + unit
        write_samples(file, number, list(kept), plan.unit(unit).get("tar"))


def merge(request: Request, plan: Plan) -> Counter:
    """Write `out`, `filtered`, `failed`, then `marker`; return how many images are in which.

    All units must be done. Lines of images that are in the plan replace earlier lines, so that a
    repeated call, such as after a kill, writes the same files. Raises UserError.
    """
    counts, finished, marker = Counter(), plan.header["tars"].copy(), _marker(request)
    planned = set(finished)
    if any(map(stores.exists, request.outputs)):
        planned.update(key_of(line["image"]) for line in plan.all_lines())
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(stores.create(name)) for name in request.outputs}
        for name, file in files.items():
            for line in lines_of(name):
                if key_of(line["image"]) not in planned:
                    file.write(json_line(line))
        for line in plan.all_lines():
            kept, dropped = split(line, request.filter)
            if "error" in line:
                files[request.failed].write(json_line(line))
                finished.pop(key_of(line["image"]), None)  # the tar itself
            if kept:
                files[request.out].write(json_line(kept))
                counts["cut"] += sum(kept.get("cuts", [kept.get("cut", False)]))
            if dropped:
                files[request.filtered].write(json_line(dropped))
            counts["captioned" if kept else "filtered" if dropped else "failed"] += 1
        empty = [name for name, file in files.items() if not file.tell()]
    for name in {*empty} - {request.out}:
        stores.remove(name)
    tars = {**marker["tars"], **finished}
    stores.put(json_line({"settings": plan.header["settings"], "tars": tars}), request.marker)
    return counts


def export(request: Request, plan: Plan) -> None:
    """Write sidecars, metadata.jsonl and the Parquet file from `out`. Raises UserError."""
    if request.sidecar:
        again = (split(line, request.filter)[0] for line in plan.all_lines())
        Sidecars(request).write(
            lines_of(request.out) if request.skips_existing else filter(None, again)
        )
    if request.metadata:
        with stores.create(request.metadata) as file:
            for line in lines_of(request.out):
                name = path_beside(line["image"], request.metadata)
                file.write(json_line({"file_name": name, "text": line["caption"]}))
    if request.parquet:
        _write_parquet(request)


def path_beside(image: str, metadata: str) -> str:
    """Return the path of an image relative to the folder of metadata.jsonl.

    Raises UserError if the image is not in that folder.
    """
    folder = metadata.rpartition("/")[0] or "."
    name = os.path.relpath(image, folder)  # of two addresses, too; of one it begins with ../
    if name.startswith("../"):
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
    lines = lines_of(request.out)
    with stores.create(request.parquet) as file, parquet.ParquetWriter(file, schema) as writer:
        while rows := [_parquet_row(line) for line in itertools.islice(lines, ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _parquet_row(line: Line) -> Line:
    image_id = str(line["image_id"]) if "image_id" in line else None
    settings = json.dumps(line.get("settings"))
    return {**line, "image_id": image_id, "captions": captions_of(line), "settings": settings}
