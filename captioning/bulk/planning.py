"""Which of the images still need a caption: what is found, less what is written already."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioning.bulk import tars
from captioning.bulk.request import Request, require
from captioning.bulk.shards import Plan, remove_plan, write_entries, write_header
from captioning.bulk.written import (
    Written,
    read_sidecar,
    read_written,
    write_missing,
    write_without_faults,
)
from captioning.runtime.errors import UserError

BASE = "base.jsonl"  # what `out` held before, under a name that keeps it
# Of a folder or list: images a shard, at least and at most, and so many shards in between. Were it
# the number of processes that decided, other samples would be drawn with each.
LEAST, MOST, SHARDS = 32, 512, 32

_IN_TAR = re.compile(r"(.*?\.(?:tar|tar\.gz|tgz))/")


@dataclass
class Tally:
    """What planning has found. failed: those that failed before and are not tried again."""

    found: int = 0
    skipped: int = 0
    failed: int = 0
    damaged: int = 0
    repeated: int = 0
    no_sidecar: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)


def make_plan(request: Request, settings: dict[str, Any]) -> tuple[Plan, Tally]:
    """Write the plan of what is to be done, and mend what needs no captioner.

    Raises UserError.
    """
    written = read_written(request)
    tally = Tally(damaged=written.damaged, repeated=written.repeated)
    tally.checkpoints = written.checkpoints
    if written.damaged or written.repeated:
        if not request.verify:
            raise UserError(
                f"{request.out}: {written.damaged} lines are damaged, {written.repeated} repeat an "
                "image: --verify mends it"
            )
        write_without_faults(request)
    remove_plan(request.parts)
    in_tars = tars.is_tars(request.source)
    entries = _tars(request, written, tally) if in_tars else _images(request, written, tally)
    name, count = write_entries(request.parts, entries)
    if not tally.found and not count:
        raise UserError(f"{request.source}: found no images")
    write_missing(request, tally.no_sidecar)
    if request.out.exists():
        _link(request.out, request.parts / BASE)
    size = request.shard_size or min(max(-(-count // SHARDS), LEAST), MOST)
    header = {
        "file": name,
        "settings": settings,
        "entries": count,
        "shard_size": 1 if in_tars else size,
        "images": tars.estimate(tars.expand(request.source)) if in_tars else count,
        "first_shard": _next_shard(request.write_shards) if request.write_shards else 0,
    }
    write_header(request.parts, header)
    return Plan(request.parts, header), tally


def _images(request: Request, written: Written, tally: Tally) -> Iterator[dict[str, Any]]:
    sidecars: dict[str, str] = {}
    folders: set[str] = set()
    for item in request.images():
        tally.found += 1
        old = written.captions.get(item.image)
        if request.sidecar:
            sidecar = request.sidecar_of(item.image)
            _check_sidecar(sidecar, item.image, sidecars, folders)
            beside = read_sidecar(sidecar)
            if old is not None and request.keeps() and not beside:
                tally.no_sidecar.add(item.image)
            old = beside or old
        if request.keeps():
            if old is not None:
                tally.skipped += 1
                continue
            if item.image in written.failed and not request.retry_failed:
                tally.failed += 1
                continue
        entry = {"image": item.image, "image_id": item.image_id, "old": old}
        if request.existing == "overwrite" or not old:
            del entry["old"]
        yield {key: value for key, value in entry.items() if value is not None}


def _check_sidecar(sidecar: Path, image: str, sidecars: dict[str, str], folders: set[str]) -> None:
    other = sidecars.setdefault(str(sidecar), image)
    if other != image:
        raise UserError(f"{other} and {image} would both have the sidecar {sidecar}: rename one")
    folder = os.path.dirname(image) or "."
    if folder not in folders and os.path.isdir(folder):
        if not os.access(folder, os.W_OK):
            raise UserError(f"cannot write {folder}, where --sidecar puts captions")
        folders.add(folder)


def _tars(request: Request, written: Written, tally: Tally) -> Iterator[dict[str, Any]]:
    require("webdataset", "a .tar")
    if request.sidecar:
        raise UserError("--sidecar is for photos, and a .tar has none beside it: --write-shards")
    done = json.loads(request.marker.read_text(encoding="utf-8")) if request.marker.exists() else {}
    by_tar = {"captions": _by_tar(written.captions), "failed": _by_tar(written.failed)}
    for url in tars.expand(request.source):
        own = by_tar["captions"].get(url, {})
        failed = {} if request.retry_failed else by_tar["failed"].get(url, {})
        entry: dict[str, Any] = {"tar": url}
        tally.found += 1
        if request.keeps():
            tally.skipped += len(own)
            tally.failed += len(failed) + (url in written.failed and not request.retry_failed)
            known = [*own, *failed]
            if _is_done(request, url, done.get("tars", {}), known):
                continue
            if known:
                entry["skip"] = known
        elif request.existing != "overwrite" and own:
            entry["old"] = own
        yield entry


def _by_tar(images: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for image, value in images.items():
        match = _IN_TAR.match(image)
        if match:
            found.setdefault(match[1], {})[image] = value
    return found


def _is_done(request: Request, url: str, done: dict[str, Any], known: list[str]) -> bool:
    """Whether every image of a tar is known; --verify looks into it."""
    record = done.get(url)
    if not request.verify:
        same = record is not None and record["bytes"] == os.path.getsize(url)
        return same and not (request.retry_failed and record["failed"])
    names = set(known)
    try:
        return all(member.name in names for member in tars.members(url))
    except Exception:  # a broken tar; that it is will be told when it is captioned
        return False


def _next_shard(folder: Path) -> int:
    numbers = [int(path.stem) for path in folder.glob("*.tar") if path.stem.isdigit()]
    return max(numbers, default=-1) + 1


def _link(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:  # a disk without links
        shutil.copyfile(path, name)
