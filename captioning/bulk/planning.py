"""Plans a call of bulk captioning: finds the images of the input that have no caption yet."""

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioning.bulk import tars
from captioning.bulk.exports import relative
from captioning.bulk.request import Request, stamp_if_any
from captioning.bulk.shards import BASE, HEADER, Entry, OutputLine, Plan, Settings, remove_plan
from captioning.bulk.sidecars import STORE_THREADS
from captioning.data.annotations import read_annotations
from captioning.data.caption_files import named_in
from captioning.files.cache import local
from captioning.files.reading import read_lines
from captioning.files.tars import expand
from captioning.files.writing import atomic_write, json_line, write_lines
from captioning.runtime.errors import UserError

# A folder or list is divided into about SHARDS shards, but a shard has at least MIN_IMAGES and at
# most MAX_IMAGES images. The number of processes must not change the shards, because the seeds of
# sampled captions depend on the shards.
MIN_IMAGES, MAX_IMAGES, SHARDS = 32, 512, 32

_TAR = re.compile(r"\.(?:tar|tar\.gz|tgz)(?=/)")  # the end of a tar's name in an image's name


@dataclass
class Tally:
    """What planning has found.

    - found: the number of images in the input, or of tars
    - skipped: the number of images that have a caption
    - failed: the number of images that failed before and are not tried again
    - damaged: the number of lines of `out` without an image or a caption
    - repeated: the number of lines of `out` whose image has an earlier line
    - no_sidecar: captioned images that lack a sidecar
    - checkpoints: the checkpoints that are named in `out`
    - settings: names of settings that differ between a line of `out` and this run
    """

    found: int = 0
    skipped: int = 0
    failed: int = 0
    damaged: int = 0
    repeated: int = 0
    no_sidecar: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)
    settings: set[str] = field(default_factory=set)


def make_plan(request: Request, settings: Settings, resumed: bool) -> tuple[Plan, Tally]:
    """Write the plan. Also write missing sidecars of captions, and with --verify repair `out`.

    settings: the settings that identify the run. resumed: whether this call has just finished an
    earlier plan of the same command. If so, photos with a line in `out` or `failed` are left out
    even with --existing overwrite, because the earlier plan has captioned them. Raises UserError.
    """
    tally = Tally()
    captioned: dict[str, None] = {}  # images, in the order of their lines
    for line in _valid_lines(request.out, tally):
        captioned[line["image"]] = None
        tally.checkpoints.add(str(line.get("checkpoint")))
        used = line.get("settings")
        if isinstance(used, dict):  # "settings" of other programs may have another type
            tally.settings.update(n for n in used if used[n] != settings.get(n, used[n]))
    failed = filter(None, read_lines(request.failed))
    failed = {line["image"]: None for line in failed if line.get("out") == request.out.name}
    # dropped[True]: images whose captions this filter dropped; they are done. dropped[False]:
    # images whose captions another filter dropped; they are captioned again.
    dropped: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for line in _valid_lines(request.filtered, Tally()):
        made = line.get("settings") or {}
        # Lines without a "filter" were written by another program and do not count.
        if line["image"] not in captioned and made.get("filter"):
            same = all(made.get(name) == settings.get(name) for name in ("filter", "itm_model"))
            dropped[same][line["image"]] = None
    if tally.damaged or tally.repeated:
        if not request.verify:
            raise UserError(
                f"{request.location(request.out)}: {tally.damaged} lines are damaged, "
                f"{tally.repeated} repeat an image: --verify repairs the file"
            )
        write_lines(request.out, _valid_lines(request.out, Tally()), request.parts)
    remove_plan(request.parts)
    done = {**captioned, **dropped[True]}
    in_tars = request.in_tars
    # Each plan has a new file name, so that another machine that still sees the files of an earlier
    # plan does not confuse the two plans.
    name, count = f"plan_{time.time_ns():x}.jsonl", 0
    with atomic_write(request.parts / name) as file:
        if in_tars:
            entries = _tars(request, done, failed, dropped[False], tally)
        else:
            entries = _images(request, done, failed, tally, resumed)
        for entry in entries:
            file.write(json_line(entry))
            count += 1
    if not tally.found:
        raise UserError(f"{request.source}: found no images")
    tally.no_sidecar.difference_update(dropped[True])
    if tally.no_sidecar:
        lines = _valid_lines(request.out, Tally())
        request.sidecars().write(line for line in lines if line["image"] in tally.no_sidecar)
    if request.out.exists():
        try:
            os.link(request.out, request.parts / BASE)
        except OSError:  # a file system without hard links
            shutil.copyfile(request.out, request.parts / BASE)
    size = request.shard_size or min(max(-(-count // SHARDS), MIN_IMAGES), MAX_IMAGES)
    folder = request.tars()
    header = {
        "file": name,
        "settings": settings,
        "entries": count,
        "shard_size": 1 if in_tars else size,
        "images": tars.estimate(expand(request.source)) if in_tars else count,
        "first_shard": max(folder.numbers(), default=-1) + 1 if folder else 0,
        "before": request.out_stamp(),
    }
    write_lines(request.parts / HEADER, [header])
    return Plan(request.parts, header), tally


def _valid_lines(out: Path, tally: Tally) -> Iterator[OutputLine]:
    """Yield the first valid line of each image. Count the other lines in `tally`."""
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
    request: Request,
    done: Collection[str],
    failed: Collection[str],
    tally: Tally,
    resumed: bool,
) -> Iterator[Entry]:
    """Yield the plan's entries for a folder or list: the images to caption.

    done: images with a caption that was kept, or that this filter dropped. failed: images that
    failed before. tally: counts what is found. resumed: see `make_plan`.
    """
    outputs = map(request.location, (request.out, request.failed, request.marker))
    sidecars = request.sidecars([request.source, *outputs]) if request.sidecar else None
    file, listed = request.captions, set()
    if file:
        listed = {sample.image for sample in read_annotations(local(file))}
    found: dict[str, str] = {}  # {name in the file of --captions: image of this run}
    skips = request.skips_existing
    for item in request.images():
        tally.found += 1
        in_out, has_failed = item.image in done, item.image in failed
        has_sidecar = bool(sidecars and sidecars.exists(item.image))
        if sidecars and in_out and skips and not has_sidecar:
            tally.no_sidecar.add(item.image)
        if request.metadata:
            relative(item.image, request.metadata)  # raises UserError for another folder
        # Look up every image, even one with a caption, to detect a name that fits two images.
        name = named_in(item.image, listed) if listed else None
        if name and found.setdefault(name, item.image) != item.image:
            raise UserError(
                f"--captions: {name} in {file} may be {found[name]} or {item.image}: use longer "
                "names there"
            )
        if resumed and not skips and (in_out or has_failed):
            tally.skipped += in_out
            tally.failed += not in_out
        elif skips and (in_out or has_sidecar or name):
            tally.skipped += 1
        elif skips and has_failed and not request.retry_failed:
            tally.failed += 1
        else:
            entry = {"image": item.image, "image_id": item.image_id, "prompt": item.prompt}
            yield {name: value for name, value in entry.items() if value is not None}
    if listed and not found:
        raise UserError(f"--captions: {file} names {min(listed)}, and no image of {request.source}")


def _tars(
    request: Request,
    captioned: Iterable[str],
    failed: Collection[str],
    again: Iterable[str],
    tally: Tally,
) -> Iterator[Entry]:
    """Yield the plan's entries for tars: the tars that have images to caption.

    captioned, failed: names of images in the tars. again: names of images to caption again even if
    the tar has not changed. tally: counts what is found.
    """
    if request.sidecar:
        raise UserError("--sidecar does not work with a .tar: use --write-shards")
    if request.captions:
        raise UserError("--captions does not work with a .tar: give a folder or a list of photos")
    done = next(read_lines(request.marker), {}).get("tars", {})
    skipped_failures = () if request.retry_failed else failed
    urls = dict.fromkeys(expand(request.source))
    # All stamps are taken before the first tar is read. If a tar is replaced later, its recorded
    # stamp is stale, so that the next call reads the tar again.
    with ThreadPoolExecutor(STORE_THREADS) as pool:
        stamps = dict(zip(urls, pool.map(stamp_if_any, urls)))
    captioned_in, failed_in = _by_tar(captioned, urls), _by_tar(skipped_failures, urls)
    again_in = _by_tar(again, urls)
    for url in urls:
        entry: Entry = {"tar": url, "stamp": stamps[url], "prompt": request.prompt}
        tally.found += 1
        if request.skips_existing:
            with_caption, without = captioned_in.get(url, []), failed_in.get(url, [])
            tally.skipped += len(with_caption)
            tally.failed += len(without) + (url in skipped_failures)
            skip = with_caption + without
            if url not in again_in and _is_done(request, url, stamps[url], done.get(url), skip):
                continue
            if skip:
                entry["skip"] = skip
        yield entry


def _by_tar(images: Iterable[str], urls: Collection[str]) -> dict[str, list[str]]:
    """Group the names of images by tar: return {URL of a tar: names of images in the tar}.

    An image's name is URL/MEMBER. A folder in the URL may also be named like a tar, so that each
    part of the name up to ".tar/" is compared with `urls`.
    """
    found: dict[str, list[str]] = {}
    for image in images:
        ends = (match.end() for match in _TAR.finditer(image))
        tar = next((image[:end] for end in ends if image[:end] in urls), None)
        if tar:
            found.setdefault(tar, []).append(image)
    return found


def _is_done(request: Request, url: str, stamp: Any, record: Any, known: list[str]) -> bool:
    """Return whether all images of a tar are done.

    Compares the tar's stamp with its record. With --verify, reads the tar instead and compares the
    names of its images with `known`. record: the tar's entry in the marker of `out`; None if there
    is none. known: the names of the tar's images that are done.
    """
    if not request.verify:
        same = record and stamp and record.get("stamp") == stamp
        return bool(same) and not (request.retry_failed and record["failed"])
    names = set(known)
    try:
        return all(member.name in names for member in tars.members(url))
    except Exception:  # the tar is broken; when it is captioned, this is reported
        return False
