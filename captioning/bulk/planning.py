"""Plans a call of bulk captioning: finds the images of the input that have no caption yet."""

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

from captioning.bulk import tars
from captioning.bulk.exports import path_beside
from captioning.bulk.request import Request, stamp_if_any
from captioning.bulk.shards import (
    BASE,
    HEADER,
    ImageEntry,
    OutputLine,
    Plan,
    PlanHeader,
    Settings,
    ShardCounts,
    TarEntry,
    remove_plan,
)
from captioning.bulk.sidecars import STORE_THREADS
from captioning.data.annotations import read_annotations
from captioning.data.caption_files import named_in
from captioning.files.cache import local
from captioning.files.reading import read_lines, read_objects
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


class EarlierImages(NamedTuple):
    """Images that earlier calls have tried, as the keys of dicts in the order of their lines.

    captioned: also images of other programs. dropped: the captions did not pass this filter, so
    that the images are done. dropped_before: the captions did not pass another filter, so that the
    images are captioned again.
    """

    captioned: dict
    failed: dict
    dropped: dict
    dropped_before: dict


def make_plan(request: Request, settings: Settings, resumed: bool) -> tuple[Plan, Tally]:
    """Write the plan. Also write missing sidecars of captions, and with --verify repair `out`.

    settings: the settings that identify the run. resumed: whether this call has just finished an
    earlier plan of the same command. If so, photos with a line in `out` or `failed` are left out
    even with --existing overwrite, because the earlier plan has captioned them. Raises UserError.
    """
    tally = Tally()
    earlier = _earlier_images(request, settings, tally)
    if tally.damaged or tally.repeated:
        if not request.verify:
            raise UserError(
                f"{request.location(request.out)}: {tally.damaged} lines are damaged, "
                f"{tally.repeated} repeat an image: --verify repairs the file"
            )
        write_lines(request.out, _valid_lines(request.out, Tally()), request.parts)
    remove_plan(request.parts)
    # Each plan has a new file name, so that another machine that still sees the files of an earlier
    # plan does not confuse the two plans.
    name, count = f"plan_{time.time_ns():x}.jsonl", 0
    with atomic_write(request.parts / name) as file:
        if request.in_tars:
            entries = _tar_entries(request, earlier, tally)
        else:
            entries = _image_entries(request, earlier, tally, resumed)
        for entry in entries:
            file.write(json_line(entry))
            count += 1
    if not tally.found:
        raise UserError(f"{request.source}: found no images")
    tally.no_sidecar.difference_update(earlier.dropped)
    if tally.no_sidecar:
        lines = _valid_lines(request.out, Tally())
        request.sidecars().write(line for line in lines if line["image"] in tally.no_sidecar)
    if request.out.exists():
        try:
            os.link(request.out, request.parts / BASE)
        except OSError:  # a file system without hard links
            shutil.copyfile(request.out, request.parts / BASE)
    header = _header(request, settings, name, count)
    write_lines(request.parts / HEADER, [header])
    return Plan(request.parts, header), tally


def _earlier_images(request: Request, settings: Settings, tally: Tally) -> EarlierImages:
    """Read the images in `out`, `failed` and `filtered`. tally: counts the lines of `out`."""
    earlier = EarlierImages({}, {}, {}, {})
    for line in _valid_lines(request.out, tally):
        earlier.captioned[line["image"]] = None
        tally.checkpoints.add(str(line.get("checkpoint")))
        used = line.get("settings")
        if isinstance(used, dict):  # "settings" of other programs may have another type
            tally.settings.update(n for n in used if used[n] != settings.get(n, used[n]))
    for line in read_objects(request.failed):
        if line.get("out") == request.out.name:
            earlier.failed[line["image"]] = None
    for line in _valid_lines(request.filtered, Tally()):
        used = line.get("settings") or {}
        # Lines without a "filter" were written by another program and do not count.
        if line["image"] not in earlier.captioned and used.get("filter"):
            same = all(used.get(name) == settings.get(name) for name in ("filter", "itm_model"))
            dropped = earlier.dropped if same else earlier.dropped_before
            dropped[line["image"]] = None
    return earlier


def _header(request: Request, settings: Settings, file: str, entries: int) -> PlanHeader:
    shard_size = request.shard_size or min(max(-(-entries // SHARDS), MIN_IMAGES), MAX_IMAGES)
    folder = request.tars()
    return PlanHeader(
        file=file,
        settings=settings,
        entries=entries,
        shard_size=1 if request.in_tars else shard_size,
        images=tars.estimate(expand(request.source)) if request.in_tars else entries,
        first_shard=max(folder.numbers(), default=-1) + 1 if folder else 0,
        before=request.out_stamp(),
    )


def _valid_lines(out: Path, tally: Tally) -> Iterator[OutputLine]:
    """Yield the first valid line of each image. Count the other lines in `tally`."""
    seen = set()
    for line in read_lines(out):
        if not line or not all(isinstance(line.get(name), str) for name in ("image", "caption")):
            tally.damaged += 1
        elif line["image"] in seen:
            tally.repeated += 1
        else:
            seen.add(line["image"])
            yield line


def _image_entries(
    request: Request, earlier: EarlierImages, tally: Tally, resumed: bool
) -> Iterator[ImageEntry]:
    """Yield the plan's entries for a folder or list: the images to caption.

    tally: counts what is found. resumed: see `make_plan`.
    """
    outputs = map(request.location, (request.out, request.failed, request.marker))
    sidecars = request.sidecars([request.source, *outputs]) if request.sidecar else None
    file, annotated = request.captions, set()
    if file:
        annotated = {sample.image for sample in read_annotations(local(file))}
    image_of = {}  # {name in the file of --captions: image of this run}
    skips = request.skips_existing
    for item in request.images():
        tally.found += 1
        in_out = item.image in earlier.captioned or item.image in earlier.dropped
        has_failed = item.image in earlier.failed
        has_sidecar = bool(sidecars and sidecars.exists(item.image))
        if sidecars and in_out and skips and not has_sidecar:
            tally.no_sidecar.add(item.image)
        if request.metadata:
            path_beside(item.image, request.metadata)  # raises UserError for another folder
        # Look up every image, even one with a caption, to detect a name that fits two images.
        name = named_in(item.image, annotated) if annotated else None
        if name and image_of.setdefault(name, item.image) != item.image:
            raise UserError(
                f"--captions: {name} in {file} may be {image_of[name]} or {item.image}: use longer "
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
    if annotated and not image_of:
        raise UserError(
            f"--captions: {file} names {min(annotated)}, and no image of {request.source}"
        )


def _tar_entries(request: Request, earlier: EarlierImages, tally: Tally) -> Iterator[TarEntry]:
    """Yield the plan's entries for tars: the tars that have images to caption.

    tally: counts what is found.
    """
    if request.sidecar:
        raise UserError("--sidecar does not work with a .tar: use --write-shards")
    if request.captions:
        raise UserError("--captions does not work with a .tar: give a folder or a list of photos")
    records = next(read_lines(request.marker), {}).get("tars", {})
    skipped_failures = () if request.retry_failed else earlier.failed
    urls = dict.fromkeys(expand(request.source))
    # All stamps are taken before the first tar is read. If a tar is replaced later, its recorded
    # stamp is stale, so that the next call reads the tar again.
    with ThreadPoolExecutor(STORE_THREADS) as pool:
        stamps = dict(zip(urls, pool.map(stamp_if_any, urls)))
    captioned_in = _group_by_tar([*earlier.captioned, *earlier.dropped], urls)
    failed_in = _group_by_tar(skipped_failures, urls)
    dropped_before_in = _group_by_tar(earlier.dropped_before, urls)
    for url in urls:
        entry = {"tar": url, "stamp": stamps[url], "prompt": request.prompt}
        tally.found += 1
        if request.skips_existing:
            captioned, failed = captioned_in.get(url, []), failed_in.get(url, [])
            tally.skipped += len(captioned)
            tally.failed += len(failed) + (url in skipped_failures)
            skip = captioned + failed
            if url not in dropped_before_in and _is_done(request, entry, records.get(url), skip):
                continue
            if skip:
                entry["skip"] = skip
        yield entry


def _group_by_tar(images: Iterable[str], urls: Collection[str]) -> dict[str, list[str]]:
    """Group the names of images by tar: return {URL of a tar: names of images in the tar}.

    An image's name is URL/MEMBER. A folder in the URL may also be named like a tar, so that each
    part of the name up to ".tar/" is compared with `urls`.
    """
    grouped = {}
    for image in images:
        ends = (match.end() for match in _TAR.finditer(image))
        tar = next((image[:end] for end in ends if image[:end] in urls), None)
        if tar:
            grouped.setdefault(tar, []).append(image)
    return grouped


def _is_done(
    request: Request, entry: TarEntry, record: Optional[ShardCounts], done_images: list[str]
) -> bool:
    """Return whether all images of a tar are done.

    Compares the tar's stamp with its record. With --verify, reads the tar instead and compares the
    names of its images with `done_images`. record: the tar's counts in the marker of `out`, if any.
    done_images: the names of the tar's images that are done.
    """
    if not request.verify:
        if not record or not entry["stamp"] or record.get("stamp") != entry["stamp"]:
            return False
        return not (request.retry_failed and record["failed"])
    names = set(done_images)
    try:
        return all(member.name in names for member in tars.members(entry["tar"]))
    except Exception:  # the tar is broken; when it is captioned, this is reported
        return False
