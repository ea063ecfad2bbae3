"""The images of shards as batches, read by worker processes, whatever some of the files are."""

import io
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from captioning.bulk import tars
from captioning.captioners.interface import Images
from captioning.data import load_image
from captioning.files import stores
from captioning.runtime import stopping
from captioning.runtime.errors import UserError


class Batch(NamedTuple):
    """Some entries of a shard. image: of those without an "error", b of them, None for none.

    last: the shard ends here, with a batch that may have no entry.
    """

    shard: int
    entries: list[dict[str, Any]]
    image: Optional[Images]
    last: bool


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

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        own = self.shards[worker.id :: worker.num_workers] if worker else self.shards
        for shard, done in own:
            sources = itertools.chain.from_iterable(map(_sources, self.entries(shard)))
            sources = itertools.islice(sources, done, None)
            while chosen := list(itertools.islice(sources, self.batch_size)):
                yield self._batch(shard, chosen)
            yield Batch(shard, [], None, last=True)

    def _batch(self, shard: int, sources: list[dict[str, Any]]) -> Batch:
        images = []
        for entry in sources:
            data = entry.pop("data", None)
            if "error" in entry:
                continue
            try:
                if data is None and stores.is_store(entry["image"]):
                    data = stores.whole(entry["image"])
                elif data is None and not os.path.exists(entry["image"]):
                    raise UserError(f"{entry['image']}: no such file")
                content = None if data is None else io.BytesIO(data)
                images.append(self.read(entry["image"], content))
            except UserError as error:
                entry["error"] = str(error)
            except Exception as error:  # whatever else an image does, the others have captions
                entry["error"] = f"{type(error).__name__}: {error}"
        return Batch(shard, sources, self.join(images) if images else None, last=False)


def _sources(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The images of an entry of the plan: itself, or those of its tar with their bytes."""
    if "tar" not in entry:
        yield entry
        return
    skip, old = set(entry.get("skip", ())), entry.get("old", {})
    try:
        for member in tars.members(entry["tar"]):
            if member.name not in skip:
                found = {"image": member.name, "image_id": member.key, "data": member.data}
                yield {**found, "old": old[member.name]} if member.name in old else found
    except Exception as error:  # tarfile's, gzip's, the library's, of a tar that is not whole
        # The library adds what it was reading to the first words of the error, and after them.
        told = str(error.args[0]).partition(" @ ")[0] if error.args else ""
        reason = " ".join(told.split()) or type(error).__name__
        yield {"image": entry["tar"], "error": f"{entry['tar']}: cannot be read on: {reason}"}


def transformed(
    transform: Callable[[Image.Image], Any], path: str, data: Optional[BinaryIO] = None
) -> Any:
    """What a captioner's `transform` makes of a file's RGB image. Raises UserError."""
    return transform(load_image(path, data))


def batches(dataset: ShardImages, workers: int) -> Iterable[Batch]:
    """workers: processes that read, of which one photo needs none."""
    entries = dataset.entries(dataset.shards[0][0]) if len(dataset.shards) == 1 else []
    if len(entries) == 1 and "tar" not in entries[0]:
        workers = 0
    return DataLoader(
        dataset,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=min(workers, len(dataset.shards)),
        worker_init_fn=stopping.ignore,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # DataLoader draws from the caller's otherwise
    )


def _as_it_is(batch: Batch) -> Batch:
    return batch
