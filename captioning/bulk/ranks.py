"""Processes that work at a pace of their own, and tell each other how far they are."""

import time
from collections import Counter
from typing import Callable

import torch.distributed as dist

from captioning.runtime import distributed, stopping

PATIENCE_S = 10  # of a process that was asked to stop, for the others
PAUSE_S = 0.1


class Ranks:
    """All processes of a run, by the store through which they have met; there may be one alone.

    A collective operation would make all wait for the slowest at every batch, and fail where the
    last shard of one takes longer than the group is patient. `name` keeps two uses apart.
    """

    def __init__(self, name: str):
        self.here: Counter[str] = Counter()
        self.store = None
        if dist.is_initialized():
            self.store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())

    def add(self, what: str, count: int) -> int:
        """Count something; the sum over all processes so far."""
        self.here[what] += count
        return self.here[what] if self.store is None else self.store.add(what, count)

    def asked_to_stop(self) -> bool:
        """Whether any process was."""
        if self.store is None:
            return bool(stopping.asked())
        if stopping.asked():
            self.store.set("stop", "")
        return self.store.check(["stop"])

    def wait_for_all(self, show: Callable[[int], None]) -> None:
        """Return when every process has come here; after a while, where one was asked to stop.

        show: is told of all images meanwhile.
        """
        if self.store is None:
            return
        self.store.set(f"rank {distributed.rank()}", "")
        everyone = [f"rank {rank}" for rank in range(distributed.world_size())]
        waited = 0.0
        while not self.store.check(everyone) and waited < PATIENCE_S:
            show(self.add("images", 0))
            time.sleep(PAUSE_S)
            waited = waited + PAUSE_S if self.asked_to_stop() else 0.0
        show(self.add("images", 0))
