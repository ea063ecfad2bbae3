"""Finds the images of the input, and divides those without a caption into units."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from captioning.bulk.outputs import Earlier, path_beside
from captioning.bulk.request import Request
from captioning.bulk.sidecars import Sidecars
from captioning.data.annotations import read_samples
from captioning.data.caption_files import named_in
from captioning.files import rows, stores, tables, tars
from captioning.files.cache import local
from captioning.files.columns import normal_name, prompt_of
from captioning.files.images import images_in, is_image
from captioning.files.stores import key_of
from captioning.runtime.errors import UserError

Entry = dict[str, Any]


@dataclass
class Inputs:
    """The images of one call that have no caption yet.

    - counts: how many images are found, skipped, planned
    - left_out: {suffix: number of a folder's files that were not taken for images}
    - tars: {key: stamp} of the tars in `units`
    """

    request: Request
    earlier: Earlier
    counts: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    tars: dict[str, Any] = field(default_factory=dict)

    def units(self) -> Iterator[dict[str, Any]]:
        """Yield the units, those of tars first. Raises UserError, also for no images."""
        request, urls, others = self.request, {}, []  # urls: {key: the first name of a tar}
        for source in request.sources:
            if tars.is_tars(source):
                for url in tars.expand(source):
                    urls.setdefault(key_of(url), url)
            else:
                others.append(source)
        for flag in ("sidecar", "captions", "metadata"):
            if urls and getattr(request, flag):
                raise UserError(f"--{flag} does not work with a .tar: use --write-shards")
        yield from self._units_of_tars(urls)
        entries = self._entries(others)
        while unit := list(islice(entries, request.shard_size)):
            yield {"images": unit}
        if not self.counts["found"]:
            raise UserError(f"{', '.join(request.sources)}: found no images")

    def _units_of_tars(self, urls: dict[str, str]) -> Iterator[dict[str, Any]]:
        # All stamps are taken before the first tar is read. If a tar is replaced later, its
        # recorded stamp is stale, so that the next call reads the tar again.
        with ThreadPoolExecutor(stores.THREADS) as pool:
            stamps = list(pool.map(stores.stamp_if_any, urls.values()))
        keys, earlier = sorted(self.earlier.done), self.earlier
        for (tar, url), stamp in zip(urls.items(), stamps):
            # "0" follows "/". A tar that cannot be read has a line itself.
            done = keys[bisect_left(keys, f"{tar}/") : bisect_left(keys, f"{tar}0")]
            self.counts.update(found=1, skipped=len(done))
            if tar not in earlier.done and (stamp is None or earlier.tars.get(tar) != stamp):
                self.tars[tar] = stamp
                yield {"tar": url, "prompt": self.request.prompt, "skip": done}

    def _entries(self, sources: list[str]) -> Iterator[Entry]:
        """Yield the entries of images in files and tables that are to be captioned."""
        request, counts, done = self.request, self.counts, self.earlier.done
        sidecars = Sidecars(request) if request.sidecar else None
        annotated, image_of = set(), {}
        if request.captions:
            known = read_samples(local(request.captions), needs=["image"])
            annotated = {sample.image for sample in known if sample.captions}
        for key, entry in self._images(sources):
            counts["found"] += 1
            image = entry["image"]
            if request.metadata:
                path_beside(image, request.metadata)  # raises UserError for another folder
            has_sidecar = sidecars is not None and sidecars.check(image)
            # Look up every image, even one with a caption, to detect a name that fits two images.
            name = named_in(image, annotated) if annotated else None
            if name and image_of.setdefault(name, image) != image:
                raise UserError(
                    f"--captions: {name} in {request.captions} may be {image_of[name]} or {image}: "
                    "use longer names there"
                )
            has_caption = has_sidecar or name
            if key in done or (request.skips_existing and has_caption):
                counts["skipped"] += 1
                prompt = hash(entry.get("prompt"))
                counts["other prompt"] += done.get(key, prompt) != prompt
            else:
                counts["planned"] += 1
                yield entry
        if annotated and not image_of:
            raise UserError(
                f"--captions: {request.captions} names {min(annotated)}, and no image of "
                f"{', '.join(sources)}"
            )

    def _images(self, sources: list[str]) -> Iterator[tuple[str, Entry]]:
        """Yield the key (see `key_of`) and the entry of each image once. Raises UserError.

        Image files are not opened here.
        """
        seen = {}  # {key of an image: hash of its id and prompt}
        for source in sources:
            for entry in self._of_source(source):
                key = key_of(entry["image"])
                identity = hash((entry.get("image_id"), entry.get("prompt")))
                if key not in seen:
                    seen[key] = identity
                    yield key, entry
                elif seen[key] != identity:
                    raise UserError(
                        f"{source}: {entry['image']} has two ids or prompts: give an image one"
                    )

    def _of_source(self, source: str) -> Iterator[Entry]:
        request, is_stored = self.request, stores.is_store(source)
        if is_stored:
            stores.check_address(source)
        elif not (rows.is_list(source) or os.path.exists(source)):
            raise UserError(f"{source}: no such photo, folder or list")
        is_list = rows.is_list(source)
        is_photo = is_image(source) if is_stored else not os.path.isdir(source)
        for flag, is_set, fits in (
            ("--glob", request.glob, not (is_list or is_photo)),
            ("--no-recursive", not request.recursive, not (is_list or is_photo)),
            ("--root", request.root, is_list),
        ):
            if is_set and not fits:
                raise UserError(f"{flag} has no effect on {source}")
        if is_list:
            if tables.is_table(source) and (request.sidecar or request.metadata):
                raise UserError(f"{source} has its images inside: use --write-shards or --parquet")
            yield from self._of_list(source)
        elif is_photo:
            yield {"image": source}
        else:
            for image in images_in(source, request.recursive, request.glob, self.left_out):
                # A key of a store may have empty parts.
                yield {"image": image if is_stored else normal_name(image)}

    def _of_list(self, source: str) -> Iterator[Entry]:
        root = self.request.root or os.path.dirname(source)
        for row in rows.read(source, needs=["image"]):
            image = row["image"] if tables.is_row(row["image"]) else stores.join(root, row["image"])
            entry = {"image": normal_name(image), "image_id": row.get("image_id")}
            entry["prompt"] = prompt_of(row, self.request.prompt)
            yield {name: value for name, value in entry.items() if value is not None}


def entries_of(unit: dict[str, Any], left_out: list[str]) -> Iterator[Entry]:
    """Yield the entries of a unit. The images of a tar come with "data", the file's bytes.

    left_out: gets the names of a tar's files that are not captioned, see `tars.samples`. Raises
    StoreError.
    """
    if "images" in unit:
        yield from unit["images"]
        return
    skip = set(unit["skip"])
    try:
        for sample in tars.samples(unit["tar"], left_out=left_out):
            if key_of(sample.name) not in skip:
                entry = {"image": sample.name, "image_id": sample.key, "data": sample.data}
                try:
                    prompt = prompt_of(sample.row, unit["prompt"])
                    yield {**entry, "prompt": prompt} if prompt else entry
                except UserError as error:
                    yield {**entry, "error": str(error)}
    except stores.StoreError:
        raise
    except (UserError, OSError) as error:
        yield {"image": unit["tar"], "error": str(error)}
