"""Makes the batches of a data set, and copies them to the device.

A global batch consists of the items that all processes train on in one step. Its items depend
neither on the number of workers nor on how many processes share the global batch.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable, Optional, Union

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, get_worker_info

from captioning.data.dataset import EvaluationDataset, TrainingDataset
from captioning.data.image import normalise
from captioning.data.randomness import derived_seed, permutation
from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line

logger = logging.getLogger(__name__)

Batch = dict[str, Any]
Collate = Callable[[list], Any]

# The number of global batches whose captions are sorted together by length. A larger number makes
# the lengths within a batch more similar; a smaller number makes an epoch more random.
POOL = 50


class Loader(DataLoader):
    """A DataLoader whose batches are dicts.

    - image: the batch that `collate` makes of the items' images.
    - skipped: the number of items whose image could not be read. The dataset has replaced these
      items, or they are left out of the batch.
    - every other key of the items: a list of B values.

    The attribute `skipped` is the sum of the batches' `skipped` since the iteration began. Each
    unreadable image is logged once. A UserError in a worker is raised without the worker's
    traceback.
    """

    def __init__(
        self, dataset: Dataset, batch_sampler, num_workers: int, collate: Collate = torch.stack
    ):
        """collate: maps a list of transformed images to a batch, see `Preprocessing`."""
        super().__init__(
            _CollatedBatches(dataset, collate),
            batch_sampler=batch_sampler,
            collate_fn=_identity,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            worker_init_fn=signals.ignore,
            pin_memory=torch.cuda.is_available(),
            # Without its own generator, DataLoader draws the workers' seed from torch's default
            # generator, which would change all later random numbers.
            generator=torch.Generator(),
        )
        self.skipped = 0
        self._logged = set()

    def check_worker_number_rationality(self) -> None:
        """Override torch's warning about many workers: the user has chosen their number."""

    def __iter__(self) -> Iterator[Batch]:
        self.skipped = 0
        for batch in super().__iter__():
            if isinstance(batch, UserError):
                raise batch
            for message in batch.pop("unreadable"):
                if message not in self._logged:
                    logger.warning("skipped %s", message)
                    self._logged.add(message)
            self.skipped += batch["skipped"]
            if batch["index"]:  # otherwise no image of the batch could be read
                yield batch

    def close(self) -> None:
        """Shut the workers down. Another iteration starts new workers.

        Without this, the traceback of a failed iteration keeps the workers alive, and the process
        waits for them forever at exit, because they ignore signals.
        """
        iteration, self._iterator = self._iterator, None
        if iteration is not None:
            iteration._shutdown_workers()


class TrainingLoader(Loader):
    """The batches of one epoch on one process. Call `set_epoch` before each epoch.

    The images are outputs of the dataset's transform, usually uint8. `on_device` normalises them.
    """

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Choose the epoch and the first batch of the next iteration. Both are counted from 0."""
        self.batch_sampler.epoch, self.batch_sampler.first_batch = epoch, first_batch


def training_loader(
    dataset: TrainingDataset,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    bucket_batches: bool = False,
    collate: Collate = torch.stack,
) -> TrainingLoader:
    """Return the loader of the batches that process `rank` of `world_size` trains on.

    The items of an epoch are shuffled by the data set's seed and the epoch, and cut into global
    batches of batch_size * world_size items. Each process gets `batch_size` items of every global
    batch. An incomplete last batch is dropped. With `bucket_batches` the captions of a global batch
    have similar lengths. Raises UserError if there are too few items for one global batch.
    """
    global_size = batch_size * world_size
    if len(dataset) < global_size:
        raise UserError(
            f"batch_size: {batch_size} on {world_size} process(es) takes {global_size} training "
            f"items, but there are {len(dataset)}: lower batch_size or add data"
        )
    lengths = dataset.lengths() if bucket_batches else None
    batches = _ShuffledBatches(dataset, batch_size, rank, world_size, lengths)
    return TrainingLoader(dataset, batches, num_workers, collate)


def evaluation_loader(
    dataset: EvaluationDataset,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    collate: Collate = torch.stack,
) -> Loader:
    """Return the loader of the items rank, rank + world_size, ..., in batches of `batch_size`.

    Each item belongs to one process. A process may have no items. A batch whose images are all
    unreadable is left out.
    """
    indices = range(len(dataset))[rank::world_size]
    return Loader(dataset, BatchSampler(indices, batch_size, False), num_workers, collate)


def bucketed(order: Sequence[int], lengths: Sequence[int], size: int, seed: int) -> list[int]:
    """Reorder items so that consecutive batches of `size` items have similar lengths.

    Such batches need little padding. order: items in random order; lengths: the length of each
    item. The items of an incomplete last batch are dropped.
    """
    order = order[: len(order) // size * size]
    batches = []
    for start in range(0, len(order), POOL * size):
        pool = sorted(order[start : start + POOL * size], key=lengths.__getitem__)
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    return [item for batch in permutation(len(batches), seed) for item in batches[batch]]


@dataclass(eq=False, repr=False)
class _ShuffledBatches:
    """Samples the batches of one process. lengths: see `bucketed`; None to disable bucketing.

    A batch is a list of keys (epoch, index), so that workers know the epoch.
    """

    dataset: TrainingDataset
    batch_size: int
    rank: int
    world_size: int
    lengths: Optional[Sequence[int]]
    epoch: int = 0
    first_batch: int = 0

    def __len__(self) -> int:
        return len(self.dataset) // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        size = self.batch_size * self.world_size
        order = self.dataset.order(self.epoch)
        if self.lengths is not None:
            seed = derived_seed("buckets", self.dataset.seed, self.epoch)
            order = bucketed(order, self.lengths, size, seed)
        order = islice(order, self.first_batch * size, None)
        part = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        for _ in range(self.first_batch, len(self)):
            yield [(self.epoch, index) for index in list(islice(order, size))[part]]


@dataclass(eq=False)
class _CollatedBatches(Dataset):
    """Makes batches of the items of a dataset, in the process that reads the items."""

    dataset: Dataset
    collate: Collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: Sequence) -> Union[Batch, UserError]:
        """Return the batch of some items. A UserError is returned, not raised.

        DataLoader would add a traceback to an error that is raised in a worker.
        """
        try:
            if hasattr(self.dataset, "prefetch"):
                self.dataset.prefetch(keys)
            return self._batch([self.dataset[key] for key in keys])
        except UserError as error:
            return error

    def _batch(self, items: list[dict[str, Any]]) -> Batch:
        present = [item for item in items if item["image"] is not None]
        batch = {key: [item[key] for item in present] for key in items[0]}
        if present:
            batch["image"] = self.collate(batch["image"])
            if get_worker_info() is not None and hasattr(batch["image"], "share_memory_"):
                # If torch itself moved the images to shared memory and failed, it would only print
                # the error, and the program would wait for the batch forever.
                try:
                    batch["image"].share_memory_()
                except RuntimeError as error:
                    raise UserError(
                        f"a batch does not fit in shared memory ({one_line(error, None)}): enlarge "
                        "/dev/shm (docker run --shm-size=8g), or set num_workers=0"
                    ) from None
        batch["unreadable"] = [message for item in items for message in item["unreadable"]]
        return {**batch, "skipped": sum(bool(item["unreadable"]) for item in items)}


def _identity(batch: Any) -> Any:
    return batch


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield a loader's batches with images on `device`, normalised, float32 (B, 3, S, S)."""
    for batch in batches:
        image = batch["image"].to(device, non_blocking=True)  # a GPU copies from pinned memory
        yield {**batch, "image": image if image.is_floating_point() else normalise(image)}
