"""Batches of a data set, the same whatever the number of worker processes or of GPUs."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import torch
from torch.utils.data import DataLoader, Dataset

from captioning.data.dataset import EvaluationDataset, TrainingDataset
from captioning.data.randomness import derived_seed, permutation
from captioning.runtime import stopping
from captioning.runtime.errors import UserError

logger = logging.getLogger(__name__)

Batch = dict[str, Any]

# Batches that are sorted together: enough for lengths to differ little within one, and few enough
# for an epoch to stay random.
POOL = 50


class Loader(DataLoader):
    """A DataLoader whose batches are dicts: image, the items' tensors stacked; skipped, how many
    images of the batch could not be read; and a list of B values for every other key of the items.

    `skipped` is their sum since the iteration began. Each unreadable image is logged once. A
    UserError in a worker is raised here as it was there, without the worker's traceback.
    """

    def __init__(self, dataset: Dataset, batch_sampler, num_workers: int):
        super().__init__(
            _ErrorsAsValues(dataset),
            batch_sampler=batch_sampler,
            collate_fn=_collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            worker_init_fn=stopping.ignore,
            pin_memory=torch.cuda.is_available(),
            # DataLoader seeds its workers from here, else from the caller's random numbers.
            generator=torch.Generator(),
        )
        self.skipped = 0
        self._logged: set[str] = set()

    def __iter__(self) -> Iterator[Batch]:
        self.skipped = 0
        for batch in super().__iter__():
            if isinstance(batch, UserError):
                try:
                    raise batch
                finally:
                    # The error holds this frame; held by it in turn, both would stay, and with them
                    # the workers, which do not end well when the garbage collector finds them.
                    del batch
            for message in batch.pop("unreadable"):
                if message not in self._logged:
                    logger.warning("skipped %s", message)
                    self._logged.add(message)
            self.skipped += batch["skipped"]
            if batch["index"]:
                yield batch


class TrainingLoader(Loader):
    """The batches of one epoch on one process; `set_epoch` before each.

    Their images are pixels, as the dataset's transform leaves them; see `Prefetcher`.
    """

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Make the next iteration that of `epoch`, an integer from 0, from a batch of it on."""
        self.batch_sampler.epoch, self.batch_sampler.first_batch = epoch, first_batch


def training_loader(
    dataset: TrainingDataset,
    batch_size: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    bucket_batches: bool = False,
) -> TrainingLoader:
    """Return the batches of `batch_size` items that process `rank` of `world_size` trains on.

    The items of an epoch are shuffled by (seed, epoch) and cut into global batches of batch_size *
    world_size, of which each process takes its part; an incomplete last one is dropped. With
    `bucket_batches` a global batch has captions of similar length.
    Raises UserError if there is not one global batch.
    """
    global_size = batch_size * world_size
    if len(dataset) < global_size:
        raise UserError(
            f"batch_size: {batch_size} on {world_size} process(es) takes {global_size} training "
            f"items, but there are {len(dataset)}: lower batch_size or add data"
        )
    lengths = dataset.lengths() if bucket_batches else None
    batches = _ShuffledBatches(len(dataset), batch_size, seed, rank, world_size, lengths)
    return TrainingLoader(dataset, batches, num_workers)


def evaluation_loader(
    dataset: EvaluationDataset,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
) -> Loader:
    """Return the batches, of at most `batch_size` items, of positions rank, rank + world_size, ...

    Every position is one process's, once; a process may have none. A batch left empty by unreadable
    images is not given out.
    """
    positions = range(len(dataset))[rank::world_size]
    batches = [positions[i : i + batch_size] for i in range(0, len(positions), batch_size)]
    return Loader(dataset, batches, num_workers)


def bucketed(order: Sequence[int], lengths: Sequence[int], size: int, seed: int) -> list[int]:
    """Return an order of whole batches of `size`, the items of each of similar length.

    Little of a batch is padding then. order: a random order of items; lengths: by item. What fills
    no batch is dropped.
    """
    order = order[: len(order) // size * size]
    batches = []
    for start in range(0, len(order), POOL * size):
        pool = sorted(order[start : start + POOL * size], key=lambda item: lengths[item])
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    return [item for batch in permutation(len(batches), seed) for item in batches[batch]]


class _ShuffledBatches:
    """Lists of keys (epoch, index): with the epoch in the key, workers need not be told of it."""

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        lengths: Optional[Sequence[int]] = None,
    ):
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.lengths = lengths
        self.epoch = self.first_batch = 0

    def __len__(self) -> int:
        return self.size // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order = permutation(self.size, derived_seed("order", self.seed, self.epoch))
        if self.lengths is not None:
            size = self.batch_size * self.world_size
            seed = derived_seed("buckets", self.seed, self.epoch)
            order = bucketed(order, self.lengths, size, seed)
        for batch in range(self.first_batch, len(self)):
            start = (batch * self.world_size + self.rank) * self.batch_size
            yield [(self.epoch, index) for index in order[start : start + self.batch_size]]


class _ErrorsAsValues(Dataset):
    """Returns a UserError instead of raising it, since a DataLoader adds tracebacks to errors."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __getitem__(self, key) -> Union[dict[str, Any], UserError]:
        try:
            return self.dataset[key]
        except UserError as error:
            return error


def _collate(items: Sequence[Union[dict[str, Any], UserError]]) -> Union[Batch, UserError]:
    for item in items:
        if isinstance(item, UserError):
            return item
    messages = [message for item in items for message in item["unreadable"]]
    present = [item for item in items if item["image"] is not None]
    batch = {key: [item[key] for item in present] for key in items[0]}
    if present:
        batch["image"] = torch.stack(batch["image"])
    skipped = sum(bool(item["unreadable"]) for item in items)
    return {**batch, "unreadable": messages, "skipped": skipped}
