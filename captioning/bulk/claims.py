"""Hands out the units of a plan to processes: to this one alone, or to those of torchrun."""

import time
from collections.abc import Iterator
from typing import Callable

import torch.distributed as dist

from captioning.bulk.work import Worker
from captioning.runtime import distributed, signals

# Adds a number to the counter of a name, which all processes share, and returns the sum.
Add = Callable[[str, int], int]


def shared_counters(name: str) -> Add:
    """Return counters of this process or, under torchrun, of all. name: the same in all."""
    is_shared = dist.is_initialized()
    store = dist.distributed_c10d._get_default_store() if is_shared else dist.HashStore()
    return dist.PrefixStore(name, store).add


def caption_claimed(worker: Worker, add: Add) -> None:
    """Caption units of the worker's plan, one after another, that no other process takes.

    Units during which a process has ended before come last, each alone, so that they do not end a
    process that has begun other units. If this process is asked to stop, the others stop after the
    units that they have begun. Raises Stopped, UserError.

    The worker's plan is the same in all processes.
    """
    left = worker.plan.left()
    suspects = [unit for unit in left if worker.plan.tries(unit)]

    def claimed(units: list[int], name: str) -> Iterator[int]:
        while not add("stopped", 0) and (place := add(name, 1) - 1) < len(units):
            yield units[place]

    try:
        worker.caption(claimed(sorted({*left} - {*suspects}), "unit"))
        for unit in claimed(suspects, "suspect"):
            worker.caption([unit], read_ahead=False)
    except signals.Stopped:
        add("stopped", 1)
    add("finished", 1)
    # Not a barrier, which would end after its timeout: a unit of another process may take hours.
    while add("finished", 0) < distributed.world_size():
        time.sleep(0.2)
        if signals.stop_requested():  # another process may have died
            add("stopped", 1)
            raise signals.Stopped
    if add("stopped", 0):
        raise signals.Stopped
