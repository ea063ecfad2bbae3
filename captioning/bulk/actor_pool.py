"""Starts Ray actors on machines with free resources, and replaces actors that die.

`ray.util.ActorPool` is not used, because it supports neither streaming results nor replacing a dead
actor. Ray's own restarts are not used, because they would repeat a shard from its beginning.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

from captioning.bulk.actors import CaptioningActor
from captioning.bulk.cluster import SHARDS_PER_ACTOR, Cluster, Machine
from captioning.bulk.request import Request
from captioning.bulk.shards import ShardFiles, ShardUpdate
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.progress import log_line

# No more actors are requested on a machine after this many failed starts in a row. A shard is given
# up when it has lost this many actors in a row without new captions.
MAX_FAILURES_IN_A_ROW = 3
POLL_MACHINES_S = 2  # seconds between two listings of the cluster's machines
# After this many seconds, an actor that is not ready is no longer counted, and the log says so.
START_TIMEOUT_S = 60
POLL_S = 0.2  # the longest wait for updates, in seconds


@dataclass(eq=False)
class Worker:
    """The driver's view of an actor and of the shards that the actor captions.

    actor: Ray's handle. loading: Ray's reference to the result of `CaptioningActor.load`; None once
    the captioner is loaded. shards: maps Ray's stream of a shard's updates to
    the shard's files.
    """

    actor: Any
    machine: Machine
    loading: Any
    capacity: int = 0  # shards at once; 0 until the captioner is loaded
    exclusive: bool = False  # whether it only runs a suspect shard, see `RayEngine.caption`
    lost: bool = False  # whether the actor has died
    requested_at: float = field(default_factory=time.monotonic)  # when the actor was requested
    shards: dict[Any, ShardFiles] = field(default_factory=dict)


class ActorPool:
    """The workers of a cluster. load: a function that builds the captioner in an actor."""

    def __init__(self, cluster: Cluster, load: Callable[[], Any]):
        self.cluster, self.load = cluster, load
        self.workers: list[Worker] = []
        self._failures = Counter()  # {machine id: failed starts in a row}
        self._last_failure = ""  # why the last start failed
        # When the machines were last listed, and when an actor was last ready.
        self._listed_at = self._last_ready_at = 0.0
        self._load_was_logged = self._wait_was_logged = False

    def is_ready(self) -> bool:
        """Return whether an actor has loaded its captioner. It may have died since."""
        return any(worker.capacity for worker in self.workers)

    def start_actors(self, request: Request, limit: int) -> None:
        """Request actors on machines with free places, until `limit` actors are counted.

        Actors that have been pending for START_TIMEOUT_S are not counted, so that other machines
        are tried. May be called often: machines are listed every POLL_MACHINES_S. Raises UserError
        if all machines have failed and no actor is loaded.
        """
        now = time.monotonic()
        if self.is_ready() or not self._last_ready_at:
            self._last_ready_at, self._wait_was_logged = now, False
        elif now - self._last_ready_at > START_TIMEOUT_S and not self._wait_was_logged:
            self._wait_was_logged = True
            resource = "GPU" if self.cluster.device.type == "cuda" else "CPU"
            log_line(
                f"waiting for a machine with a free {resource}, and for the captioner to be loaded"
            )
        if now - self._listed_at < POLL_MACHINES_S:
            return
        self._listed_at = now
        machines = self.cluster.machines()
        usable = [
            machine for machine in machines if self._failures[machine.id] < MAX_FAILURES_IN_A_ROW
        ]
        alive = [worker for worker in self.workers if not worker.lost]
        if machines and not usable and not any(worker.capacity for worker in alive):
            raise UserError(
                f"no machine of the cluster can start a captioner: {self._last_failure}"
            )
        for machine in usable:
            workers_here = [worker for worker in self.workers if worker.machine.id == machine.id]
            counted = [w for w in alive if w.capacity or now - w.requested_at < START_TIMEOUT_S]
            for _ in range(min(machine.actors - len(workers_here), limit - len(counted))):
                actor = self.cluster.actor(CaptioningActor, machine)
                worker = Worker(actor, machine, actor.load.remote(self.load, request))
                self.workers.append(worker)
                alive.append(worker)

    def poll(self) -> Iterator[tuple[Worker, Any, Union[ShardUpdate, Exception]]]:
        """Wait up to POLL_S for updates; yield (worker, stream, update) for each.

        stream: a key of `worker.shards`. update: an exception if the actor died or the stream ended
        early. Raises UserError if an actor reports an error of the user while it loads. An actor
        that dies while it loads is lost.
        """
        import ray

        worker_of = {}
        for worker in self.workers:
            worker_of.update(dict.fromkeys(worker.shards, worker))
            if worker.loading is not None:
                worker_of[worker.loading] = worker
        if not worker_of:
            time.sleep(POLL_S)
            return
        ready, _ = ray.wait(list(worker_of), num_returns=1, timeout=POLL_S)
        if ready:
            ready, _ = ray.wait(list(worker_of), num_returns=len(worker_of), timeout=0)
        for sender in ready:
            worker = worker_of[sender]
            try:
                if sender is worker.loading:
                    report, capacity, problem = ray.get(sender)
                    if problem is not None:
                        raise UserError(f"[{worker.machine.name}] {problem}")
                    worker.loading, worker.capacity = None, min(capacity, SHARDS_PER_ACTOR)
                    self._failures[worker.machine.id] = 0
                    if not self._load_was_logged:
                        self._load_was_logged = True
                        log_line(report)
                    continue
                update = ShardUpdate(*ray.get(next(sender)))
            except (ray.exceptions.RayError, StopIteration) as error:
                if sender is worker.loading:
                    self.lose(worker, error)
                    continue
                update = error
            yield worker, sender, update

    def least_busy(self) -> Optional[Worker]:
        """Return the worker with the fewest shards; None if no worker can take another shard."""
        free = [w for w in self.workers if not (w.lost or w.exclusive)]
        free = [worker for worker in free if len(worker.shards) < worker.capacity]
        return min(free, key=lambda worker: len(worker.shards), default=None)

    def lose(self, worker: Worker, error: Exception) -> None:
        """Mark a worker as lost, so that the worker gets no more shards. error: why."""
        if not worker.lost:
            worker.lost = True
            if worker.loading is not None:
                self._failures[worker.machine.id] += 1
                self._last_failure = f"[{worker.machine.name}] {one_line(error, 300)}"
            log_line(f"lost a captioner on {worker.machine.name}; others take its shards")
        self.release(worker)

    def release(self, worker: Worker) -> None:
        """Remove a lost worker and free its resources. Does nothing while it still has shards."""
        import ray

        if worker.lost and not worker.shards and worker in self.workers:
            self.workers.remove(worker)
            ray.kill(worker.actor)
