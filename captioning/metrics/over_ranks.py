"""Divides an evaluator's work among the processes that torchrun starts, one per rank."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import numpy as np
import torch
from torch import Tensor

from captioning.runtime import signals
from captioning.runtime.distributed import broadcast_from_main, gather_on_main, rank, world_size
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

READERS = 8  # threads that prepare inputs, for example decode images

T = TypeVar("T")


def call_on_all_ranks(function: Callable[[], T]) -> T:
    """Call `function` and return its result. All processes have to make this call.

    If it fails on one process, all processes raise UserError. Otherwise the other processes would
    wait for the failed one until the process group times out. If there is only one process, it
    raises the original error.
    """
    if world_size() == 1:
        return function()
    result = reason = None
    try:
        result = function()
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else repr(error)
    reasons = gather_on_main(reason)
    reason = broadcast_from_main(next(filter(None, reasons or ()), None))
    if reason:
        raise UserError(reason)
    return result


def map_over_ranks(
    batches: Sequence[Sequence[int]],
    prepare: Callable[[int], Any],
    compute: Callable[[list], np.ndarray],
    description: str,
    unit: str = "img",
) -> Optional[np.ndarray]:
    """Compute one value or row per index. Rank 0 returns them sorted by index; others return None.

    All processes have to make this call. If `prepare` or `compute` fails on one process, all
    processes raise UserError, as in `call_on_all_ranks`.

    batches: lists of indices that contain each of 0 to n - 1 once. A batch is never divided, so the
    result does not depend on the number of processes. prepare: maps an index to an input of
    `compute`; called in threads. compute: maps a list of B inputs to an array (B, ...).
    description, unit: of the progress bar, which counts indices.
    """
    own = batches[rank() :: world_size()]
    total = sum(map(len, batches))

    def computed():
        parts = []
        with progress(total, description, unit) as bar:
            for batch, prepared in _prefetch(own, prepare):
                parts.append((batch, compute(prepared)))
                bar.update(min(len(batch) * world_size(), bar.total - bar.n))
                if signals.stop_requested():
                    raise UserError("asked to stop")
        return parts

    gathered = gather_on_main(call_on_all_ranks(computed))
    if gathered is None:
        return None
    batches, values = zip(*chain(*gathered))
    return np.concatenate(values)[np.argsort(np.concatenate(batches))]


def read_images(read: Callable[[Path], Tensor], paths: Iterable[Path]) -> Tensor:
    """Return B images (B, 3, S, S). read: maps a path to a tensor (3, S, S); called in threads."""
    with ThreadPoolExecutor(READERS) as pool:
        return torch.stack(list(pool.map(read, paths)))


def _prefetch(batches, prepare) -> Iterator[tuple[Sequence[int], list]]:
    """Yield (batch, inputs). The caller computes a batch while the next inputs are prepared."""
    pool = ThreadPoolExecutor(READERS)
    try:
        started = ((batch, pool.map(prepare, batch)) for batch in batches)
        following = next(started, None)
        while following:
            (batch, prepared), following = following, next(started, None)
            yield batch, list(prepared)
    finally:
        pool.shutdown(cancel_futures=True)


def batches_by_length(
    lengths: Sequence[int], size: int, tokens: Optional[int] = None
) -> list[list[int]]:
    """Return the indices of N texts in batches of similar length, which need little padding.

    Texts of equal lengths keep their order. lengths: the number of tokens of each text. size: the
    maximum number of texts in a batch. tokens: the maximum number of tokens in a batch, including
    padding; a text with more tokens becomes a batch of its own.
    """
    batches, batch = [], []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded_tokens = (len(batch) + 1) * lengths[index]
        if batch and (len(batch) == size or (tokens is not None and padded_tokens > tokens)):
            batches.append(batch)
            batch = []
        batch.append(index)
    return [*batches, batch] if batch else []
