"""Reads the images of shards in batches, in worker processes. Bad files become error entries."""

import io
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from captioning.bulk import tars
from captioning.captioners.interface import Images
from captioning.data import load_image
from captioning.files import stores, tables
from captioning.files.images import prompt_of
from captioning.runtime import signals
from captioning.runtime.errors import UserError


class Batch(NamedTuple):
    """A batch of entries of a shard.

    image: the images of the entries without an "error"; None if all have one. ends_shard: whether
    it marks the end of the shard; such a batch has no entries. problem: the error line that ends
    the run when a store has stopped answering.
    """

    shard: int
    entries: list[dict[str, Any]]
    image: Optional[Images]
    ends_shard: bool
    problem: Optional[str] = None


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

    entries: Callable[[int], list[dict[str, Any]]]
    shards: list[tuple[int, int]]
    batch_size: int
    read: Callable[[str, Optional[BinaryIO], Optional[str]], Any]
    join: Callable[[list], Images] = torch.stack
    last_read: Optional[str] = None  # address of the file most recently returned by a store

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        own = self.shards[worker.id :: worker.num_workers] if worker else self.shards
        for shard, done in own:
            images = itertools.chain.from_iterable(map(self._images, self.entries(shard)))
            images = itertools.islice(images, done, None)
            try:
                while (batch := self._batch(shard, images)).entries:
                    yield batch
            # An exception in a worker process would reach the user as a traceback.
            except _StoreDown as error:
                yield Batch(shard, [], None, ends_shard=False, problem=str(error))
                return
            yield Batch(shard, [], None, ends_shard=True)

    def _batch(self, shard: int, source: Iterator[dict[str, Any]]) -> Batch:
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
        return Batch(shard, entries, self.join(images) if images else None, ends_shard=False)

    def _check_store(self, address: str, error: stores.StoreError) -> None:
        """Raise _StoreDown if the store no longer returns the file that was read last.

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
        raise _StoreDown(error)

    def _images(self, entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
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
        except stores.StoreError as error:
            raise _StoreDown(error) from None
        except Exception as error:
            # webdataset appends the file name to the error, after " @ " and in further arguments.
            reason = str(error.args[0]).partition(" @ ")[0] if error.args else ""
            reason = " ".join(reason.split()) or type(error).__name__
            yield {"image": tar, "error": f"{tar}: cannot be read further: {reason}"}


def _prompt(member: tars.SampleImage, template: Optional[str]) -> dict[str, str]:
    """The prompt of a tar's image, or why it cannot be read."""
    try:
        prompt = prompt_of(member.fields(), member.name, template)
    except UserError as error:
        return {"error": str(error)}
    return {"prompt": prompt} if prompt else {}


class _StoreDown(Exception):
    """A store has stopped returning files."""

    def __init__(self, error: stores.StoreError):
        super().__init__(f"{error}; nothing is lost; run the same command again to continue")


def transformed(
    transform: Callable[..., Any],
    path: str,
    data: Optional[BinaryIO] = None,
    prompt: Optional[str] = None,
    takes_prompt: bool = False,
) -> Any:
    """Apply a transform to the RGB image of a file. Raises UserError.

    takes_prompt: whether the transform takes the prompt as a second argument.
    """
    image = load_image(path, data)
    try:
        return transform(image, prompt) if takes_prompt else transform(image)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def batches(dataset: ShardImages, workers: int) -> Iterator[Batch]:
    """Yield the batches, read in `workers` processes. A single photo is read in this process.

    Raises UserError if a store stops answering.
    """
    entries = dataset.entries(dataset.shards[0][0]) if len(dataset.shards) == 1 else []
    if len(entries) == 1 and "tar" not in entries[0]:
        workers = 0
    loader = DataLoader(
        dataset,
        batch_size=None,
        collate_fn=_identity,
        num_workers=min(workers, len(dataset.shards)),
        worker_init_fn=signals.ignore,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # otherwise DataLoader draws from the global generator
    )
    for batch in loader:
        if batch.problem:
            raise UserError(batch.problem)
        yield batch


def _identity(batch: Batch) -> Batch:
    return batch
