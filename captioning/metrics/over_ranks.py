"""Divides a metric's work among the processes of torchrun."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import numpy as np
import torch
from torch import Tensor

from captioning.runtime import signals
from captioning.runtime.distributed import broadcast_from_main, gather_on_main, rank, world_size
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

READERS = 8  # threads that prepare the next batch, for example by decoding images

T = TypeVar("T")


def on_all_ranks(do: Callable[[], T]) -> T:
    """Call `do` on all processes; if it fails on one process, all processes raise UserError.

    Without this, the other processes would wait until the process group times out. Returns this
    process's result.
    """
    if world_size() == 1:
        return do()
    result = reason = None
    try:
        result = do()
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
    """Compute one value or row per index, and return them in order of index on rank 0.

    Other ranks return None. An exception in `prepare` or `compute` is raised on all processes.

    batches: lists of indices. One process computes a whole batch, so the result does not depend on
    the number of processes. prepare: maps an index to an input of `compute`; runs in threads.
    compute: maps a batch of inputs to an array (B, ...). unit: what the progress bar counts.
    """
    own = batches[rank() :: world_size()]
    total = sum(map(len, batches))

    def computed():
        parts = []
        with progress(total, description, unit) as bar:
            for batch, prepared in _ahead(own, prepare):
                parts.append((batch, compute(prepared)))
                bar.update(min(len(batch) * world_size(), bar.total - bar.n))
                if signals.stop_requested():
                    raise UserError("asked to stop")
        return parts

    gathered = gather_on_main(on_all_ranks(computed))
    if gathered is None:
        return None
    order = np.concatenate([np.asarray(b, dtype=int) for r in gathered for b, _ in r])
    values = np.concatenate([value for part in gathered for _, value in part])
    result = np.empty_like(values)
    result[order] = values
    return result


def read_images(read: Callable[[Path], Tensor], paths: Iterable[Path]) -> Tensor:
    """Read image files in threads and stack them."""
    with ThreadPoolExecutor(READERS) as pool:
        return torch.stack(list(pool.map(read, paths)))


def _ahead(batches, prepare) -> Iterator[tuple[Sequence[int], list]]:
    """Yield each batch with its inputs. They are prepared while the previous batch is computed."""
    pool = ThreadPoolExecutor(READERS)
    try:
        started = ((batch, pool.map(prepare, batch)) for batch in batches)
        following = next(started, None)
        while following:
            (batch, prepared), following = following, next(started, None)
            yield batch, list(prepared)
    finally:
        pool.shutdown(cancel_futures=True)


def batches_in_order(count: int, size: int) -> list[range]:
    """Divide `count` indices into batches of at most `size`."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def batches_by_length(
    lengths: Sequence[int], size: int, tokens: Optional[int] = None
) -> list[list[int]]:
    """Group texts of similar length, which need little padding, into batches of indices.

    size: the most texts of a batch. tokens: the most tokens of a batch with padding; a single text
    may have more.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        full = tokens is not None and batches and (len(batches[-1]) + 1) * lengths[index] > tokens
        if not batches or full or len(batches[-1]) == size:
            batches.append([])
        batches[-1].append(index)
    return batches
