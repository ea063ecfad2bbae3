"""Reads the images of shards in batches, in worker processes. Bad files become error entries."""

import io
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, NamedTuple, Optional, Union

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from captioning.bulk import tars
from captioning.bulk.shards import Entry
from captioning.captioners.interface import Images
from captioning.files import stores, tables
from captioning.files.images import prompt_of
from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line


class Batch(NamedTuple):
    """A batch of entries of a shard; without entries, the end of the shard.

    image: the images of the entries without an "error"; None if all have one.
    """

    shard: int
    entries: list[Entry]
    image: Optional[Images] = None


@dataclass(eq=False)
class ShardImages(IterableDataset):
    """Batches of `batch_size` images of the shards.

    entries: returns the entries of a shard. shards: (number of the shard, number of its images that
    are finished). read: called with an image's path, its content or None for a file on disk, and
    its prompt or None; returns the captioner's input. join: makes a batch of these inputs.

    Each worker process reads whole shards, so that a tar is read once and in order. Batch
    boundaries depend only on the plan and the finished images, so that repeating a run gives the
    same captions.
    """

    entries: Callable[[int], list[Entry]]
    shards: list[tuple[int, int]]
    batch_size: int
    read: Callable[[str, Optional[BinaryIO], Optional[str]], Any]
    join: Callable[[list], Images] = torch.stack
    last_read: Optional[str] = None  # address of the file most recently returned by a store

    def __iter__(self) -> Iterator[Union[Batch, UserError]]:
        """Yield the batches; last a UserError, not raised, if a store has stopped answering.

        An exception in a worker process would reach the user as a traceback.
        """
        worker = get_worker_info()
        own = self.shards[worker.id :: worker.num_workers] if worker else self.shards
        for shard, done in own:
            images = itertools.chain.from_iterable(map(self._images, self.entries(shard)))
            images = itertools.islice(images, done, None)
            try:
                while (batch := self._batch(shard, images)).entries:
                    yield batch
            except stores.StoreError as error:
                yield UserError(f"{error}; nothing is lost; run the same command again to continue")
                return
            yield batch

    def _batch(self, shard: int, source: Iterator[Entry]) -> Batch:
        """Return the next batch. The bytes of a file are freed before the next file is read."""
        entries, images, failure = [], [], None
        for entry in itertools.islice(source, self.batch_size):
            entries.append(entry)
            data = entry.pop("data", None)
            if "error" in entry:
                continue
            try:
                if data is None and tables.is_row(entry["image"]):
                    data = tables.image_bytes(entry["image"])
                elif data is None and stores.is_store(entry["image"]):
                    data = stores.read_bytes(entry["image"])
                    self.last_read = entry["image"]
                elif data is None and not os.path.exists(entry["image"]):
                    raise UserError(f"{entry['image']}: no such file")
                content = None if data is None else io.BytesIO(data)
                images.append(self.read(entry["image"], content, entry.get("prompt")))
            except stores.StoreError as error:
                entry["error"] = str(error)
                if self.last_read:
                    self._check_store(entry["image"], error)
                else:  # later files of the batch may be readable
                    failure = failure or (entry["image"], error)
            except UserError as error:
                entry["error"] = str(error)
            except Exception as error:  # a broken image must not end the run
                entry["error"] = f"{type(error).__name__}: {error}"
        if failure:
            self._check_store(*failure)
        return Batch(shard, entries, self.join(images) if images else None)

    def _check_store(self, address: str, error: stores.StoreError) -> None:
        """Raise the error if the store no longer returns the file that was read last.

        https addresses may be on different servers. Therefore an https error concerns one file.
        """
        if address.startswith("https:"):
            return
        try:
            if self.last_read:
                stores.read_range(self.last_read, 0, 1)
                return
        except UserError:
            pass
        raise error

    def _images(self, entry: Entry) -> Iterator[Entry]:
        """Yield a plan's entry itself, or an entry with "data" for each image of its tar."""
        if "tar" not in entry:
            yield entry
            return
        tar, skip = entry["tar"], set(entry.get("skip", ()))
        try:
            for member in tars.members(tar):
                if member.name not in skip:
                    found = {"image": member.name, "image_id": member.key, "data": member.data}
                    yield {**found, **_prompt(member, entry.get("prompt"))}
        except stores.StoreError:
            raise
        except Exception as error:  # of tarfile, gzip or a library that unpacks
            yield {"image": tar, "error": f"{tar}: cannot be read further: {one_line(error)}"}


def _prompt(member: tars.SampleImage, template: Optional[str]) -> dict[str, str]:
    """The prompt of a tar's image, or why it cannot be read."""
    try:
        prompt = prompt_of(member.fields(), member.name, template)
    except UserError as error:
        return {"error": str(error)}
    return {"prompt": prompt} if prompt else {}


def batches(
    model: Any, entries: Callable[[int], list[Entry]], shards: list[tuple[int, int]]
) -> Iterator[Batch]:
    """Yield the batches of the shards for a `CheckpointModel`, read in its `num_workers` processes.

    A single photo is read in this process. entries, shards: see `ShardImages`. Raises UserError if
    a store stops answering.
    """
    workers = min(model.num_workers, len(shards))
    photos = entries(shards[0][0]) if len(shards) == 1 else []
    if len(photos) == 1 and "tar" not in photos[0]:
        workers = 0
    loader = DataLoader(
        ShardImages(entries, shards, model.batch_size, model.read, model.join),
        batch_size=None,
        collate_fn=_identity,
        num_workers=workers,
        worker_init_fn=signals.ignore,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # otherwise DataLoader draws from the global generator
    )
    for batch in loader:
        if isinstance(batch, UserError):
            raise UserError(str(batch))  # `raise batch` would keep the workers alive in a cycle
        yield batch


def _identity(batch: Any) -> Any:
    return batch
