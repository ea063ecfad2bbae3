"""Captions the shards of a plan on the actors of a Ray cluster.

The driver is the process that the user started. Only the driver's disk has the plan and the
captions. An actor sends new captions every second, and the driver appends the captions to the
shard's journal, as the local engine does. Therefore captions survive the loss of an actor.
"""

import os
from collections import deque
from typing import Any, Callable

from captioning.bulk.actor_pool import MAX_FAILURES_IN_A_ROW, ActorPool, Worker
from captioning.bulk.cluster import Cluster
from captioning.bulk.local_engine import OnImages, mark_done
from captioning.bulk.request import Request
from captioning.bulk.shards import Entry, Plan, ShardFiles, ShardUpdate
from captioning.files import stores
from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.progress import log_line


class RayEngine:
    """An engine that captions on a cluster. load: a function that builds the captioner."""

    def __init__(self, cluster: Cluster, load: Callable[[], Any]):
        self.cluster = cluster
        self.pool = ActorPool(cluster, load)

    def start(self, request: Request, shards: int) -> None:
        """Wait until one actor has loaded its captioner. shards: the number of shards to caption.

        Raises UserError, Stopped.
        """
        self.cluster.join()
        while not self.pool.is_ready():
            self.pool.start_actors(request, shards)
            list(self.pool.poll())
            if signals.stop_requested():
                raise signals.Stopped

    def caption(self, request: Request, plan: Plan, shards: list[int], on_images: OnImages) -> None:
        """Finish the given shards. Raises Stopped, OSError, UserError.

        A shard that loses its actor is given to another actor. A shard that loses several actors
        without progress is given up. If shards were given up, raises UserError when all other
        shards are finished.
        """
        pool, self.request, self.plan, self.on_images = self.pool, request, plan, on_images
        self.waiting = deque(shards)
        # Shards that have lost two actors in a row without progress. Each of them runs alone on a
        # worker, because it may crash the worker again.
        self.suspects = []
        # {shard: (number of lines at the last loss, losses in a row without new lines)}
        self.losses = {}
        self.given_up = []  # error lines, one per shard
        while True:
            left = len(self.waiting) + len(self.suspects) + sum(len(w.shards) for w in pool.workers)
            if not left:
                break
            if signals.stop_requested():
                raise signals.Stopped
            pool.start_actors(request, left)
            while self.waiting and (worker := pool.least_busy()) is not None:
                self._assign(worker, self.waiting.popleft())
            while self.suspects and (worker := pool.least_busy()) is not None and not worker.shards:
                worker.exclusive = True
                self._assign(worker, self.suspects.pop())
            for worker, stream, update in pool.poll():
                if isinstance(update, Exception):
                    self._handle_loss(worker, stream, update)
                else:
                    self._receive(worker, stream, update)
        if self.given_up:
            raise UserError(self.given_up[0])

    def _assign(self, worker: Worker, shard: int) -> None:
        files = ShardFiles(self.plan.folder, shard).recover()
        entries = self.plan.entries(shard)
        first = _first_name(entries)
        local_file = first if not stores.is_store(first) and os.path.exists(first) else None
        # The actor may write sidecars and a tar before its first update. Create a journal, which
        # prevents a later call from replacing the plan even if it is empty.
        files.journal.touch()
        stream = worker.actor.caption.options(num_returns="streaming").remote(
            shard, self.plan.tar_number(shard), entries, list(files.lines), local_file
        )
        worker.shards[stream] = files

    def _receive(self, worker: Worker, stream: Any, update: ShardUpdate) -> None:
        shard = worker.shards[stream]
        for line in update.messages:
            log_line(f"[{worker.machine.name}] {line}")
        if update.lines:
            shard.add(update.lines)
            self.on_images(len(update.lines))
        if update.counts is not None:
            shard.seal()
            mark_done(self.request, self.plan, shard, update.counts)
        if update.problem is not None:
            raise UserError(f"[{worker.machine.name}] {update.problem}")
        if update.counts is not None:
            del worker.shards[stream]
            worker.exclusive = False
            self.pool.release(worker)

    def _handle_loss(self, worker: Worker, stream: Any, error: Exception) -> None:
        import ray

        shard = worker.shards.pop(stream)
        self.pool.lose(worker, error)
        before, times = self.losses.get(shard.number, (0, 0))
        times = times + 1 if len(shard.lines) == before else 1
        self.losses[shard.number] = len(shard.lines), times
        if times < MAX_FAILURES_IN_A_ROW:
            if times == 1:
                self.waiting.appendleft(shard.number)
            else:
                self.suspects.append(shard.number)
        elif isinstance(error, ray.exceptions.RayTaskError):  # a bug: show its traceback
            raise error
        else:
            entries = self.plan.entries(shard.number)
            name = _first_name(entries[min(len(shard.lines), len(entries) - 1) :])
            self.given_up.append(
                f"shard {shard.number}: {times} captioners were lost at {name} or soon after it: "
                f"{one_line(error, 300)}"
            )


def _first_name(entries: list[Entry]) -> str:
    """Return the path or address of the image or tar of the first entry."""
    return entries[0].get("tar") or entries[0]["image"]
