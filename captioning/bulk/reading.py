"""Reads the images of shards in batches, in worker processes.

A file that cannot be read does not end the run: its entry gets an "error".
"""

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
from captioning.files.image_lists import prompt_of_row
from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line


class Batch(NamedTuple):
    """A batch of images of one shard. A batch without entries marks the end of the shard.

    shard: the shard's number. entries: {"image", "image_id", "prompt"} of each image, or with an
    "error" if the image cannot be read. image: the batched images of the entries without an
    "error"; None if there are none.
    """

    shard: int
    entries: list[Entry]
    image: Optional[Images] = None


@dataclass(eq=False)
class ShardImages(IterableDataset):
    """Yields the images of shards in batches of `batch_size`.

    - entries: returns the plan's entries of a shard, given its number
    - shards: pairs (number of the shard, number of its images that are finished)
    - read: returns the captioner's input for an image, given the image's path, the file's content
      (None for a file on disk) and the image's prompt or None
    - collate: makes a batch of a list of these inputs

    A worker process reads whole shards, so that a tar is read once and in order. Where batches
    begin and end depends only on the plan and the finished images, so that a repeated run generates
    the same captions.
    """

    entries: Callable[[int], list[Entry]]
    shards: list[tuple[int, int]]
    batch_size: int
    read: Callable[[str, Optional[BinaryIO], Optional[str]], Any]
    collate: Callable[[list], Images] = torch.stack
    last_read: Optional[str] = None  # address of the file most recently returned by a store

    def __iter__(self) -> Iterator[Union[Batch, UserError]]:
        """Yield the batches. If a store stops answering, yield a UserError and end.

        The UserError is not raised, because an exception in a worker process would reach the user
        as a traceback. `batches` raises it in the main process.
        """
        worker = get_worker_info()
        shards = self.shards[worker.id :: worker.num_workers] if worker else self.shards
        for shard, finished in shards:
            entries = itertools.chain.from_iterable(map(self._image_entries, self.entries(shard)))
            remaining = itertools.islice(entries, finished, None)
            try:
                while (batch := self._batch(shard, remaining)).entries:
                    yield batch
            except stores.StoreError as error:
                yield UserError(f"{error}; nothing is lost; run the same command again to continue")
                return
            yield batch

    def _batch(self, shard: int, remaining: Iterator[Entry]) -> Batch:
        """Return the next batch. A file's bytes are freed before the next file is read.

        remaining: the other entries of the shard, one per image, from `_image_entries`.
        """
        entries, images, failure = [], [], None
        for entry in itertools.islice(remaining, self.batch_size):
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
                else:  # no file was read yet: check the store when the whole batch was tried
                    failure = failure or (entry["image"], error)
            except UserError as error:
                entry["error"] = str(error)
            except Exception as error:  # a broken image must not end the run
                entry["error"] = f"{type(error).__name__}: {error}"
        if failure:
            self._check_store(*failure)
        return Batch(shard, entries, self.collate(images) if images else None)

    def _check_store(self, address: str, error: stores.StoreError) -> None:
        """Raise the error unless the store still returns the file that was last read successfully.

        If the store returns that file, the error concerns one file and not the store. An error at
        an https address always concerns one file, because each address may have its own server.
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

    def _image_entries(self, entry: Entry) -> Iterator[Entry]:
        """Yield one entry per image: the plan's entry itself, or one for each image of its tar.

        The entry of a tar's image also has "data", the bytes of the image file.
        """
        if "tar" not in entry:
            yield entry
            return
        tar, skip = entry["tar"], set(entry.get("skip", ()))
        try:
            for member in tars.members(tar):
                if member.name not in skip:
                    found = {"image": member.name, "image_id": member.key, "data": member.data}
                    yield {**found, **_prompt_or_error(member, entry.get("prompt"))}
        except stores.StoreError:
            raise
        except Exception as error:  # raised by tarfile, gzip or another decompressor
            yield {"image": tar, "error": f"{tar}: cannot be read further: {one_line(error)}"}


def _prompt_or_error(member: tars.SampleImage, template: Optional[str]) -> dict[str, str]:
    """Return {"prompt"} for a tar's image, {} without a prompt, or {"error"} if it is unreadable.

    template: the value of --prompt.
    """
    try:
        prompt = prompt_of_row(member.fields(), member.name, template)
    except UserError as error:
        return {"error": str(error)}
    return {"prompt": prompt} if prompt else {}


def batches(
    model: Any, entries: Callable[[int], list[Entry]], shards: list[tuple[int, int]]
) -> Iterator[Batch]:
    """Yield the batches of the shards, read in `model.num_workers` processes.

    model: a `CheckpointModel` or a class with the same interface. entries, shards: see
    `ShardImages`. A single photo is read in this process. Raises UserError if a store stops
    answering.
    """
    workers = min(model.num_workers, len(shards))
    photos = entries(shards[0][0]) if len(shards) == 1 else []
    if len(photos) == 1 and "tar" not in photos[0]:
        workers = 0
    loader = DataLoader(
        ShardImages(entries, shards, model.batch_size, model.read, model.collate),
        batch_size=None,
        collate_fn=_identity,
        num_workers=workers,
        worker_init_fn=signals.ignore,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # otherwise DataLoader draws from the global generator
    )
    for batch in loader:
        if isinstance(batch, UserError):
            # `raise batch` would create a reference cycle that keeps the worker processes alive.
            raise UserError(str(batch))
        yield batch


def _identity(batch: Any) -> Any:
    return batch
