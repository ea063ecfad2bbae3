"""Computes values in batches, while threads read the next inputs."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor

from captioning.runtime import signals
from captioning.runtime.progress import progress

READERS = 8  # threads that read inputs, for example decode images


def in_batches(
    items: Sequence[Any],
    compute: Callable[[list], np.ndarray],
    size: int,
    description: str,
    read: Callable[[Any], Any] = lambda item: item,
) -> np.ndarray:
    """Return one row per item. Raises Stopped when this process is asked to stop.

    - compute: maps the inputs of at most `size` items to as many rows
    - description: of the progress bar
    - read: maps an item to its input; called in threads
    """
    rows = []
    with ThreadPoolExecutor(READERS) as pool, progress(len(items), description, "it") as bar:
        starts = range(0, len(items), size)
        batches = (pool.map(read, items[start : start + size]) for start in starts)
        following = next(batches)
        while following:
            inputs, following = following, next(batches, None)
            rows.append(compute(list(inputs)))
            bar.update(len(rows[-1]))
            signals.raise_if_requested()
    return np.concatenate(rows)


def read_images(read: Callable[[Path], Tensor], paths: Iterable[Path]) -> Tensor:
    """Return B images (B, 3, S, S). read: maps a path to a tensor (3, S, S); called in threads."""
    with ThreadPoolExecutor(READERS) as pool:
        return torch.stack(list(pool.map(read, paths)))
