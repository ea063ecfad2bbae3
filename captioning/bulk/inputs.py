"""Finds the images of the input, and divides those without a caption into units."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from captioning.bulk.outputs import Earlier, key_of, path_beside
from captioning.bulk.request import Request
from captioning.bulk.sidecars import Sidecars
from captioning.data.annotations import read_samples
from captioning.data.caption_files import named_in
from captioning.files import rows, stores, tables, tars
from captioning.files.cache import local
from captioning.files.columns import normal_name, prompt_of
from captioning.files.images import images_in, is_image
from captioning.runtime.errors import UserError

_TAR = re.compile(r"\.(?:tar|tar\.gz|tgz)(?=/)", re.IGNORECASE)  # the end of a tar's name

Entry = dict[str, Any]


class Counts(Counter):
    """What planning counts: images that are found, skipped, planned, or have failed before.

    left_out: {suffix: number of a folder's files that were not taken for images}.
    """

    def __init__(self):
        super().__init__()
        self.left_out = Counter()


def units(request: Request, earlier: Earlier, counts: Counts) -> Iterator[dict[str, Any]]:
    """Yield the units of images that have no caption yet. Raises UserError, also for no images."""
    sources = list(request.sources)
    urls = dict.fromkeys(
        url for source in sources if tars.is_tars(source) for url in tars.expand(source)
    )
    if urls and (request.sidecar or request.captions or request.metadata):
        flag = next(f for f in ("sidecar", "captions", "metadata") if getattr(request, f))
        raise UserError(f"--{flag} does not work with a .tar: use --write-shards")
    yield from _units_of_tars(request, list(urls), earlier, counts)
    entries = _left(request, [s for s in sources if not tars.is_tars(s)], earlier, counts)
    while unit := list(islice(entries, request.shard_size)):
        yield {"images": unit}
    if not counts["found"]:
        raise UserError(f"{', '.join(sources)}: found no images")


def _units_of_tars(
    request: Request, urls: list[str], earlier: Earlier, counts: Counts
) -> Iterator[dict[str, Any]]:
    # All stamps are taken before the first tar is read. If a tar is replaced later, its recorded
    # stamp is stale, so that the next call reads the tar again.
    with ThreadPoolExecutor(stores.THREADS) as pool:
        stamps = dict(zip(urls, pool.map(stores.stamp_if_any, urls)))
    groups = (earlier.done, earlier.failed, earlier.again)
    done, failed, again = (_by_tar(images, urls) for images in groups)
    for url in urls:
        counts["found"] += 1
        counts["skipped"] += len(done.get(url, ()))
        counts["failed before"] += len(failed.get(url, ()))
        is_known = earlier.tars.get(url) == stamps[url] is not None and url not in again
        if key_of(url) in earlier.failed:  # as a whole
            counts["failed before"] += 1
        elif not is_known:
            unit = {"tar": url, "stamp": stamps[url], "prompt": request.prompt}
            yield {**unit, "skip": [*done.get(url, ()), *failed.get(url, ())]}


def _by_tar(images: Iterable[str], urls: Collection[str]) -> dict[str, list[str]]:
    """Group the names of images, TAR/MEMBER, by tar: {url: names}.

    A folder in a url may also be named like a tar, so that each possible end is compared.
    """
    by_key = {key_of(url): url for url in urls}
    grouped = {}
    for image in images if urls else ():
        for end in _TAR.finditer(image):
            if url := by_key.get(image[: end.end()]):
                grouped.setdefault(url, []).append(f"{url}{image[end.end() :]}")
    return grouped


def _left(
    request: Request, sources: list[str], earlier: Earlier, counts: Counts
) -> Iterator[Entry]:
    """Yield the entries of images in files and tables that are to be captioned."""
    sidecars = Sidecars(request) if request.sidecar else None
    annotated, image_of = set(), {}
    if request.captions:
        known = read_samples(local(request.captions), needs=["image"])
        annotated = {sample.image for sample in known if sample.captions}
    for key, entry in _images(request, sources, counts):
        counts["found"] += 1
        image = entry["image"]
        if request.metadata:
            path_beside(image, request.metadata)  # raises UserError for another folder
        has_sidecar = sidecars is not None and sidecars.check(image)
        # Look up every image, even one with a caption, to detect a name that fits two images.
        name = named_in(image, annotated) if annotated else None
        if name and image_of.setdefault(name, image) != image:
            raise UserError(
                f"--captions: {name} in {request.captions} may be {image_of[name]} or {image}: use "
                "longer names there"
            )
        if key in earlier.failed:
            counts["failed before"] += 1
        elif key in earlier.done or (request.skips_existing and (has_sidecar or name)):
            counts["skipped"] += 1
            prompt = hash(entry.get("prompt"))
            counts["other prompt"] += earlier.done.get(key, prompt) != prompt
        else:
            counts["planned"] += 1
            yield entry
    if annotated and not image_of:
        raise UserError(
            f"--captions: {request.captions} names {min(annotated)}, and no image of "
            f"{', '.join(sources)}"
        )


def _images(request: Request, sources: list[str], counts: Counts) -> Iterator[tuple[str, Entry]]:
    """Yield the key (see `key_of`) and the entry of each image once. Raises UserError.

    Image files are not opened here.
    """
    seen, number = {}, 0  # {key of an image: hash of its id and prompt}
    for source in sources:
        for entry in _of_source(request, source, counts):
            identity = hash((entry.get("image_id"), entry.get("prompt")))
            key = key_of(entry["image"])
            if seen.setdefault(key, identity) != identity:
                raise UserError(
                    f"{source}: {entry['image']} has two ids or prompts: give an image one"
                )
            if len(seen) > number:
                number = len(seen)
                yield key, entry


def _of_source(request: Request, source: str, counts: Counts) -> Iterator[Entry]:
    stored = stores.is_store(source)
    if stored:
        stores.check_address(source)
    is_list = rows.is_list(source)
    if not (stored or is_list or os.path.exists(source)):
        raise UserError(f"{source}: no such photo, folder or list")
    is_folder = (
        not (is_list or is_image(source)) if stored else os.path.isdir(source) and not is_list
    )
    of_folder = {"--glob": request.glob, "--no-recursive": not request.recursive}
    of_list = {"--root": request.root, "--column": request.column}
    for kind, fits, flags in (("folder", is_folder, of_folder), ("list", is_list, of_list)):
        unfit = next((name for name, is_set in flags.items() if is_set and not fits), None)
        if unfit:
            raise UserError(f"{unfit} is for a {kind}, and {source} is not one")
    if is_folder:
        images = images_in(source, request.recursive, request.glob, counts.left_out)
        return ({"image": image if stored else normal_name(image)} for image in images)
    if not is_list:
        return iter([{"image": source}])
    if tables.is_table(source) and (request.sidecar or request.metadata):
        raise UserError(f"{source} has its images inside: use --write-shards or --parquet")
    return _of_list(request, source)


def _of_list(request: Request, source: str) -> Iterator[Entry]:
    root = request.root or os.path.dirname(source)
    for row in rows.read(source, column=request.column, needs=["image"]):
        image = row["image"] if tables.is_row(row["image"]) else stores.join(root, row["image"])
        entry = {"image": normal_name(image), "image_id": row.get("image_id")}
        entry["prompt"] = prompt_of(row, request.prompt)
        yield {name: value for name, value in entry.items() if value is not None}


def entries_of(unit: dict[str, Any], left_out: list[str]) -> Iterator[Entry]:
    """Yield the entries of a unit.

    The images of a tar come with "data", the file's bytes, or with "span", where they are.
    left_out: gets the names of a tar's files that are not captioned, see `tars.samples`. Raises
    StoreError.
    """
    if "images" in unit:
        yield from unit["images"]
        return
    url, skip = unit["tar"], set(unit["skip"])
    # A packed tar allows no random access, and a store answers many small requests slowly.
    with_data = stores.is_store(url) or not url.lower().endswith(".tar")
    try:
        for sample in tars.samples(url, with_data, left_out):
            if sample.name not in skip:
                yield _entry_of(sample, unit)
    except stores.StoreError:
        raise
    except (UserError, OSError) as error:
        yield {"image": url, "error": str(error)}


def _entry_of(sample: tars.Sample, unit: dict[str, Any]) -> Entry:
    entry: Entry = {"image": sample.name, "image_id": sample.key}
    try:
        if prompt := prompt_of(sample.row, unit["prompt"]):
            entry["prompt"] = prompt
    except UserError as error:
        return {**entry, "error": str(error)}
    if sample.data is not None:
        return {**entry, "data": sample.data}
    return {**entry, "span": stores.ByteRange(unit["tar"], sample.position, sample.size)}
