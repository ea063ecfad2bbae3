"""The images of shards as batches, read by worker processes, whatever some of the files are."""

import io
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from captioning.bulk import tars
from captioning.captioners.interface import Images
from captioning.data import load_image
from captioning.files import stores
from captioning.runtime import signals
from captioning.runtime.errors import UserError


class Batch(NamedTuple):
    """Some entries of a shard. image: of those without an "error", b of them, None for none.

    last: the shard ends here, with a batch that may have no entry. refused: why a store gives
    nothing any more, the line that ends the run.
    """

    shard: int
    entries: list[dict[str, Any]]
    image: Optional[Images]
    last: bool
    refused: Optional[str] = None


@dataclass(eq=False)
class ShardImages(IterableDataset):
    """Batches of `batch_size` images of shards, each from an image of it on.

    entries: those of a shard. shards: their numbers, and how many images of each are done already.
    Every worker process has whole shards for itself, so a tar is read once, from its beginning to
    its end. Where a batch begins depends on nothing but the plan: what is made again comes out as
    it did. read: makes what the captioner takes of a file, by its path and, if it is none on disk,
    its content.
    """

    entries: Callable[[int], list[dict[str, Any]]]
    shards: list[tuple[int, int]]
    batch_size: int
    read: Callable[[str, Optional[BinaryIO]], Any]
    join: Callable[[list], Images] = torch.stack
    given: Optional[str] = None  # by a store: the file that this process has read last

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        own = self.shards[worker.id :: worker.num_workers] if worker else self.shards
        for shard, done in own:
            sources = itertools.chain.from_iterable(map(self._sources, self.entries(shard)))
            sources = itertools.islice(sources, done, None)
            try:
                while (batch := self._batch(shard, sources)).entries:
                    yield batch
            except _Refused as refusal:  # of its own class a worker's error would be many lines
                yield Batch(shard, [], None, last=False, refused=str(refusal))
                return
            yield Batch(shard, [], None, last=True)

    def _batch(self, shard: int, sources: Iterator[dict[str, Any]]) -> Batch:
        """The next images. The bytes of a tar's are dropped one by one, not kept for the batch."""
        entries, images, doubtful = [], [], None
        for entry in itertools.islice(sources, self.batch_size):
            entries.append(entry)
            data = entry.pop("data", None)
            if "error" in entry:
                continue
            try:
                if data is None and stores.is_store(entry["image"]):
                    data = stores.whole(entry["image"])
                    self.given = entry["image"]
                elif data is None and not os.path.exists(entry["image"]):
                    raise UserError(f"{entry['image']}: no such file")
                content = None if data is None else io.BytesIO(data)
                images.append(self.read(entry["image"], content))
            except stores.StoreError as error:
                entry["error"] = str(error)
                if self.given:
                    self._blame(entry["image"], error)
                else:
                    doubtful = doubtful or (entry["image"], error)
            except UserError as error:
                entry["error"] = str(error)
            except Exception as error:  # whatever else an image does, the others have captions
                entry["error"] = f"{type(error).__name__}: {error}"
        if doubtful:
            self._blame(*doubtful)
        return Batch(shard, entries, self.join(images) if images else None, last=False)

    def _blame(self, address: str, error: stores.StoreError) -> None:
        """Raise _Refused unless the fault is the one file's: the store still gives another one.

        Of servers of https each file may have its own.
        """
        if not stores.has_folders(address):
            return
        try:
            if self.given:
                stores.span(self.given, 0, 1)
                return
        except UserError:
            pass
        raise _Refused(_going_on(error))

    def _sources(self, entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The images of an entry of the plan: itself, or those of its tar with their bytes."""
        if "tar" not in entry:
            yield entry
            return
        tar, skip, old = entry["tar"], set(entry.get("skip", ())), entry.get("old", {})
        try:
            for member in tars.members(tar):
                if member.name not in skip:
                    found = {"image": member.name, "image_id": member.key, "data": member.data}
                    yield {**found, "old": old[member.name]} if member.name in old else found
        except stores.StoreError as error:
            raise _Refused(_going_on(error)) from None
        except Exception as error:
            yield {"image": tar, "error": _cannot_be_read_on(tar, error)}


class _Refused(Exception):
    """A store gives nothing any more."""


def _going_on(error: stores.StoreError) -> str:
    return f"{error}; nothing is lost, and the same command goes on from here"


def _cannot_be_read_on(tar: str, error: Exception) -> str:
    """What tarfile, gzip or the library says of a tar that is not whole, in one line."""
    # The library adds what it was reading to the first words of the error, and after them.
    told = str(error.args[0]).partition(" @ ")[0] if error.args else ""
    reason = " ".join(told.split()) or type(error).__name__
    return f"{tar}: cannot be read on: {reason}"


def transformed(
    transform: Callable[[Image.Image], Any], path: str, data: Optional[BinaryIO] = None
) -> Any:
    """What a captioner's `transform` makes of a file's RGB image. Raises UserError."""
    return transform(load_image(path, data))


def batches(dataset: ShardImages, workers: int) -> Iterator[Batch]:
    """workers: processes that read, of which one photo needs none. Raises UserError where a store
    gives nothing any more."""
    entries = dataset.entries(dataset.shards[0][0]) if len(dataset.shards) == 1 else []
    if len(entries) == 1 and "tar" not in entries[0]:
        workers = 0
    loader = DataLoader(
        dataset,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=min(workers, len(dataset.shards)),
        worker_init_fn=signals.ignore,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # DataLoader draws from the caller's otherwise
    )
    for batch in loader:
        if batch.refused:
            raise UserError(batch.refused)
        yield batch


def _as_it_is(batch: Batch) -> Batch:
    return batch
