"""The coordinator of captions on a cluster, far beyond one machine: captioners that sleep.

    python -m benchmarks.scale [--shards 10000] [--machines 4] [--actors 16] [--growth 10000 ...]

The program is the real one, on a Ray cluster of several nodes on this machine. An actor is a
process that sleeps as long as a shard would take it, and then sends lines. Actors end at random,
and half way a machine is lost. --growth: numbers of images instead, without sleep and failures.
What comes out is compared with what has to. Needs requirements-cluster.txt, and 100 MB an actor.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from captioning.bulk import planning
from captioning.bulk.actor_pool import ActorPool
from captioning.bulk.cluster import CPUS, Cluster
from captioning.bulk.ray_engine import RayEngine, _Dispatcher
from captioning.bulk.request import Request
from captioning.bulk.run import BulkCaptioning

SETTINGS = {"num_beams": 3, "max_length": 40, "min_length": 5, "length_penalty": 1.0}
CAPTION = "a red disc lies on a blue square, and a small yellow star is to the left of both of them"
OWN = {"include_dashboard": False, "object_store_memory": 100 << 20}


def line_of(image: str) -> dict[str, Any]:
    """As long as BLIP's."""
    known = {"checkpoint": "output/caption_coco/checkpoint_best.pth", "settings": SETTINGS}
    return {"image": image, "caption": CAPTION, "score": -0.42424, **known}


def names_of(images: int) -> Iterator[str]:
    for number in range(images):
        yield f"photos/{number // 1000:05d}/{number:09d}.jpg"


def sleeper(shard_s: float, failures: float) -> type:
    """The class of an actor that takes so long for a shard, and ends in so many of them."""

    class Sleeper:
        def __init__(self, folder):
            import random

            self.random = random.Random()

        def load(self, load, request):
            return "", 1, None

        def caption(self, task):
            import os
            import time

            left = task.entries[len(task.lines) :]
            seconds = self.random.uniform(0.5, 1.5) * shard_s * len(left) / len(task.entries)
            pieces = max(1, round(seconds))  # told of every second, as by a real one
            for piece in range(pieces):
                time.sleep(seconds / pieces)
                if self.random.random() < failures / pieces:
                    os._exit(1)
                own = left[piece * len(left) // pieces : (piece + 1) * len(left) // pieces]
                counts = {"images": len(task.entries), "failed": 0}
                lines = [line_of(entry["image"]) for entry in own]
                yield lines, [], counts if piece == pieces - 1 else None, None

    return Sleeper


class Watch:
    """Seconds and shards, what was lost, and how long it was until others had it."""

    def __init__(self, nodes: Any, shards: int):
        self.nodes, self.shards = nodes, shards
        self.handed = self.actors_lost = 0
        self.lost_at, self.machine, self.again = 0.0, "", 0
        self.back_s: list[float] = []  # of each of the machine's shards, until another has it
        self._missing: set[int] = set()

    def install(self) -> None:
        give, lose, lost = _Dispatcher._give, ActorPool.lose, _Dispatcher._lost

        def given(dispatcher, worker, shard):
            self.handed += 1
            if self.nodes and self.handed == self.shards // 2:
                node = next(iter(self.nodes.worker_nodes))
                self.machine, self.lost_at = node.node_id, time.monotonic()
                self.nodes.remove_node(node, allow_graceful=False)
            if shard in self._missing:
                self._missing.remove(shard)
                self.back_s.append(round(time.monotonic() - self.lost_at, 2))
            give(dispatcher, worker, shard)

        def losing(pool, worker, error):
            self.actors_lost += not worker.lost
            lose(pool, worker, error)

        def missed(dispatcher, worker, stream, error):
            self.again += 1
            if worker.machine.id == self.machine:
                self._missing.add(worker.parts[stream].shard)
            lost(dispatcher, worker, stream, error)

        _Dispatcher._give, ActorPool.lose, _Dispatcher._lost = given, losing, missed


def measured(given: argparse.Namespace, images: int, size: int, folder: Path) -> dict[str, Any]:
    """One run of so many images, in shards of `size`; what it took."""
    from ray.cluster_utils import Cluster as Nodes

    listed = folder / "photos.txt"
    with open(listed, "w") as file:
        file.writelines(f"{name}\n" for name in names_of(images))
    nodes = Nodes(initialize_head=True, head_node_args={**OWN, "num_cpus": 0})
    for _ in range(given.machines):
        nodes.add_node(num_cpus=given.actors * CPUS, **OWN)
    request = Request(str(listed), folder / "captions.jsonl", shard_size=size)
    growing = given.growth is not None
    watch = Watch(None if growing else nodes, given.shards)
    watch.install()
    kind = sleeper(0, 0) if growing else sleeper(given.seconds, given.failures)
    began: dict[str, float] = {}
    caption, merge = RayEngine.caption, BulkCaptioning._merge

    def timed(self, *arguments):
        began.update(planned=peak(), plan_cpu=time.process_time() - start_cpu)
        while sum(w.capacity > 0 for w in self.pool.workers) < given.machines * given.actors:
            self.pool.start_actors(request, given.shards)
            list(self.pool.poll())
        wall, work = time.monotonic(), time.process_time()
        caption(self, *arguments)
        began.update(wall=time.monotonic() - wall, work=time.process_time() - work)

    def merging(self, plan):
        before = time.process_time()
        merge(self, plan)
        began["merge_cpu"] = time.process_time() - before

    RayEngine.caption, BulkCaptioning._merge = timed, merging
    base, start, start_cpu = peak(), time.monotonic(), time.process_time()
    with contextlib.closing(Cluster(nodes.address, "cpu")) as cluster:
        engine = RayEngine(cluster, lambda: None, kind)
        BulkCaptioning(request, {"checkpoint": "sleeps"}, engine, False).run()
    nodes.shutdown()
    with open(request.out) as file:
        for name in names_of(images):
            line = file.readline()
            assert json.loads(line) == line_of(str(folder / name)), line
        assert not file.readline()
    shards = -(-images // size)
    found = {
        "images": images, "shards": shards, "base_mb": base, "planned_mb": began["planned"],
        "peak_mb": peak(), "total_s": time.monotonic() - start, "captioning_s": began["wall"],
        "plan_cpu_s": began["plan_cpu"], "captioning_cpu_s": began["work"],
        "merge_cpu_s": began["merge_cpu"], "actors_lost": watch.actors_lost,
        "shards_again": watch.again, "machines_shards_back_s": watch.back_s,
    }  # fmt: skip
    return {
        key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()
    }


def peak() -> float:
    """MB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=32, help="images of a shard")
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--actors", type=int, default=16, help="of a machine")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a shard, on average")
    parser.add_argument("--failures", type=float, default=0.005, help="of shards, with their actor")
    parser.add_argument(
        "--growth", type=int, nargs="+", help="numbers of images, in turn; the last flag"
    )
    given = parser.parse_args(argv)
    if given.growth is not None and len(given.growth) > 1:  # memory's peak is a process's
        before = argv[: argv.index("--growth")]
        for images in given.growth:
            command = [sys.executable, "-m", "benchmarks.scale", *before, "--growth", str(images)]
            subprocess.run(command, check=True)
        return 0
    images, size = given.shards * given.size, given.size
    if given.growth is not None:
        images, size = given.growth[0], planning.MOST
        given.shards = -(-images // size)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(given, images, size, Path(folder))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
