"""Merges the captions of all shards into the output files, in the plan's order."""

import itertools
from collections.abc import Iterable
from typing import Callable, NamedTuple

from captioning.bulk.request import Request
from captioning.bulk.shards import BASE, OutputLine, Plan
from captioning.files.manifest import HashedFile
from captioning.files.reading import read_lines, read_objects
from captioning.files.writing import atomic_write, json_line, locked, write_lines


class Merged(NamedTuple):
    """The numbers of images of a plan."""

    captioned: int
    failed: int
    filtered: int


def merge(request: Request, plan: Plan) -> Merged:
    """Write the request's files `out`, `filtered` and `failed`, then `marker`. Raises OSError.

    All shards must be complete. A repeated call, such as after a crash, writes the same files.
    """
    shards = plan.shards()

    def new_lines() -> Iterable[OutputLine]:
        return itertools.chain.from_iterable(shard.read() for shard in shards)

    replaced = set() if request.skips_existing else {line["image"] for line in new_lines()}
    base = read_objects(request.parts / BASE)
    base = (line for line in base if line["image"] not in replaced)
    images = 0
    with atomic_write(request.out, request.parts) as file:
        out = HashedFile(file)
        for line in itertools.chain(base, request.kept(new_lines())):
            if "error" not in line:
                out.write(json_line(line))
                images += 1
    _write_filtered(request, new_lines)
    counts = [shard.counts() for shard in shards]
    tars = {of_shard["tar"]: of_shard for of_shard in counts if "tar" in of_shard}
    with locked(request.failed):  # all runs with captions files in this folder share this file
        failed = _write_failed(request, new_lines(), set(tars))
    tars = {**next(read_lines(request.marker), {}).get("tars", {}), **tars}
    content = {"images": images, "failed": failed, "tars": tars, **out.manifest()}
    write_lines(request.marker, [content], request.parts)

    def total(name: str) -> int:
        return sum(of_shard.get(name, 0) for of_shard in counts)

    return Merged(total("images"), total("failed"), total("filtered"))


def _write_filtered(request: Request, new_lines: Callable[[], Iterable[OutputLine]]) -> None:
    """Write `filtered`: earlier lines of images that were not captioned again, then new lines.

    new_lines: returns the output lines of all shards.
    """
    if not (request.filter or request.filtered.exists()):
        return
    again = {line["image"] for line in new_lines()}
    old = (
        line
        for line in read_objects(request.filtered)
        # Lines without a "filter" were written by another program and stay.
        if not ((line.get("settings") or {}).get("filter") and line.get("image") in again)
    )
    dropped = filter(None, (request.split(line).dropped for line in new_lines()))
    write_lines(request.filtered, itertools.chain(old, dropped), request.parts)
    if not request.filtered.stat().st_size:
        request.filtered.unlink()


def _write_failed(request: Request, new: Iterable[OutputLine], tars: set[str]) -> int:
    """Write `failed`, and keep its lines of runs with other captions files.

    Returns the number of lines of this run. new: the output lines of all shards. tars: the input
    tars that the plan has read.
    """
    out = request.out.name
    old = list(read_objects(request.failed))
    others = [line for line in old if line.get("out") != out]
    own = {line["image"]: line for line in old if line.get("out") == out}
    for tar in tars:  # remove the earlier error of a tar that was read again
        own.pop(tar, None)
    for line in new:
        own.pop(line["image"], None)
        if "error" in line:
            own[line["image"]] = {**line, "out": out}
    if others or own:
        write_lines(request.failed, [*others, *own.values()], request.parts)
    else:
        request.failed.unlink(missing_ok=True)
    return len(own)
