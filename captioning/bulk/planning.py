"""Which of the images still need a caption: what is found, less what is written already."""

import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioning.bulk import tars
from captioning.bulk.existing import ExistingCaptions
from captioning.bulk.request import Request, require, stamp_if_any
from captioning.bulk.shards import BASE, HEADER, Line, Plan, captions_of, remove_plan
from captioning.bulk.sidecars import AT_ONCE, Sidecars
from captioning.files.reading import read_lines
from captioning.files.tars import expand
from captioning.files.writing import atomic_write, json_line, write_lines
from captioning.runtime.errors import UserError

# Of a folder or list: images a shard, at least and at most, and so many shards in between. Were it
# the number of processes that decided, other samples would be drawn with each.
LEAST, MOST, SHARDS = 32, 512, 32

_TAR = re.compile(r"\.(?:tar|tar\.gz|tgz)(?=/)")


@dataclass
class Tally:
    """What planning has found. failed: those that failed before and are not tried again.

    damaged, repeated: lines of `out` that are no caption of an image, or of one named before.
    settings: those of which a line has another value than was asked for now.
    """

    found: int = 0
    skipped: int = 0
    failed: int = 0
    damaged: int = 0
    repeated: int = 0
    no_sidecar: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)
    settings: set[str] = field(default_factory=set)


def make_plan(request: Request, settings: dict[str, Any], resumed: bool) -> tuple[Plan, Tally]:
    """Write the plan of what is to be done, and mend what needs no captioner.

    resumed: an earlier plan of the same command has just been finished; photos that have a line in
    `out` or `failed` are left out, whatever `existing` is. Raises UserError.
    """
    tally = Tally()
    written: dict[str, list[str]] = {}  # captions by image, empty where nobody asks for them
    for line in _first_lines(request.out, tally):
        written[line["image"]] = [] if request.keeps() else captions_of(line)
        tally.checkpoints.add(str(line.get("checkpoint")))
        if isinstance(made := line.get("settings"), dict):  # by whatever wrote the file
            tally.settings.update(n for n in made if made[n] != settings.get(n, made[n]))
    failed = filter(None, read_lines(request.failed))
    failed = {line["image"]: line for line in failed if line.get("out") == request.out.name}
    if tally.damaged or tally.repeated:
        if not request.verify:
            raise UserError(
                f"{request.told(request.out)}: {tally.damaged} lines are damaged, "
                f"{tally.repeated} repeat an image: --verify mends it"
            )
        write_lines(request.out, _first_lines(request.out, Tally()), request.parts)
    remove_plan(request.parts)
    in_tars = request.in_tars
    # A name that no other plan has had: another machine may for a while see what was there before.
    name, count = f"plan_{time.time_ns():x}.jsonl", 0
    with atomic_write(request.parts / name) as file:
        if in_tars:
            entries = _tars(request, written, failed, tally)
        else:
            entries = _images(request, written, failed, tally, resumed)
        for entry in entries:
            file.write(json_line(entry))
            count += 1
    if not tally.found and not count:
        raise UserError(f"{request.source}: found no images")
    if tally.no_sidecar:
        lines = _first_lines(request.out, Tally())
        lacking = (line for line in lines if line["image"] in tally.no_sidecar)
        Sidecars(request.sidecar).write(lacking)
    if request.out.exists():
        try:
            os.link(request.out, request.parts / BASE)
        except OSError:  # a disk without links
            shutil.copyfile(request.out, request.parts / BASE)
    size = request.shard_size or min(max(-(-count // SHARDS), LEAST), MOST)
    folder = request.tars()
    header = {
        "file": name,
        "settings": settings,
        "entries": count,
        "shard_size": 1 if in_tars else size,
        "images": tars.estimate(expand(request.source)) if in_tars else count,
        "first_shard": max(folder.numbers(), default=-1) + 1 if folder else 0,
        "before": request.stamp(),
    }
    write_lines(request.parts / HEADER, [header])
    return Plan(request.parts, header), tally


def _first_lines(out: Path, tally: Tally) -> Iterator[Line]:
    """The first whole line of each image; the others are counted."""
    seen: set[str] = set()
    for line in read_lines(out):
        if not line or not all(isinstance(line.get(name), str) for name in ("image", "caption")):
            tally.damaged += 1
        elif line["image"] in seen:
            tally.repeated += 1
        else:
            seen.add(line["image"])
            yield line


def _images(
    request: Request, written, failed, tally: Tally, resumed: bool
) -> Iterator[dict[str, Any]]:
    sidecars = Sidecars(request.sidecar, request.files()) if request.sidecar else None
    known = ExistingCaptions(request.captions) if request.captions else None
    keeps = request.keeps()
    for item in request.images():
        tally.found += 1
        old = written.get(item.image)
        finished = resumed and not keeps and (old is not None or item.image in failed)
        if sidecars:
            beside = sidecars.look(item.image, read=not (keeps or finished))
            if old is not None and keeps and not beside:
                tally.no_sidecar.add(item.image)
            old = beside or old
        if known:
            in_file = known.of(item.image)  # asked in any case, as it sees which images there are
            old = in_file if old is None else old
        if finished:
            tally.skipped += item.image in written
            tally.failed += item.image not in written
        elif keeps and old is not None:
            tally.skipped += 1
        elif keeps and item.image in failed and not request.retry_failed:
            tally.failed += 1
        else:
            kept = None if request.existing == "overwrite" else old or None
            entry = {"image": item.image, "image_id": item.image_id, "old": kept}
            yield {key: value for key, value in entry.items() if value is not None}
    if known:
        known.check_used(request.source)


def _tars(request: Request, written, failed, tally: Tally) -> Iterator[dict[str, Any]]:
    require("webdataset", "a .tar")
    if request.sidecar:
        raise UserError("--sidecar is for photos, and a .tar has none beside it: --write-shards")
    if request.captions:
        raise UserError("--captions is for photos, and a .tar has its own: give a folder or a list")
    done = next(read_lines(request.marker), {}).get("tars", {})
    left_alone = {} if request.retry_failed else failed
    urls = dict.fromkeys(expand(request.source))
    # Before any is read: what is replaced meanwhile is then read anew by the next call.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        stamps = dict(zip(urls, pool.map(stamp_if_any, urls)))
    captions_in, failed_in = _by_tar(written, urls), _by_tar(left_alone, urls)
    for url in urls:
        own, lost = captions_in.get(url, {}), failed_in.get(url, {})
        entry: dict[str, Any] = {"tar": url, "stamp": stamps[url]}
        tally.found += 1
        if request.keeps():
            tally.skipped += len(own)
            tally.failed += len(lost) + (url in left_alone)
            known = [*own, *lost]
            if _is_done(request, url, stamps[url], done.get(url), known):
                continue
            if known:
                entry["skip"] = known
        elif request.existing != "overwrite" and own:
            entry["old"] = own
        yield entry


def _by_tar(images: dict[str, Any], urls: Collection[str]) -> dict[str, dict[str, Any]]:
    """By the tar that an image is in, of these: a folder may have the name of a tar as well."""
    found: dict[str, dict[str, Any]] = {}
    for image, value in images.items():
        ends = (match.end() for match in _TAR.finditer(image))
        tar = next((image[:end] for end in ends if image[:end] in urls), None)
        if tar:
            found.setdefault(tar, {})[image] = value
    return found


def _is_done(request: Request, url: str, stamp: Any, record: Any, known: list[str]) -> bool:
    """Whether every image of a tar is known; --verify looks into it."""
    if not request.verify:
        # An older version kept its size alone.
        before = record and record.get("stamp", [record.get("bytes")])
        same = before and stamp and stamp[: len(before)] == before
        return bool(same) and not (request.retry_failed and record["failed"])
    names = set(known)
    try:
        return all(member.name in names for member in tars.members(url))
    except Exception:  # a broken tar; that it is will be told when it is captioned
        return False
