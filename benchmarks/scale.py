"""Bulk captioning on a large cluster, simulated on one machine by captioners that sleep.

    python -m benchmarks.scale [--shards 10000] [--machines 4] [--actors 16] [--growth 10000 ...]

The driver is the real one. The Ray cluster has several nodes, all on this machine. An actor is a
process that sleeps as long as captioning a shard would take, and sends lines. Actors die at random,
and half way a node is lost. The output is compared with the expected lines.

--growth measures several numbers of images instead, without sleeping and failures. Needs
requirements-cluster.txt, and 100 MB per actor.
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
from captioning.bulk.cluster import CPUS, Cluster
from captioning.bulk.ray_engine import RayEngine
from captioning.bulk.request import Request
from captioning.bulk.run import BulkCaptioning

SETTINGS = {"num_beams": 3, "max_length": 40, "min_length": 5, "length_penalty": 1.0}
CAPTION = "a red disc lies on a blue square, and a small yellow star is to the left of both of them"
NODE = {"include_dashboard": False, "object_store_memory": 100 << 20}


def line_of(image: str) -> dict[str, Any]:
    """A line as long as a line of BLIP."""
    known = {"checkpoint": "output/caption_coco/checkpoint_best.pth", "settings": SETTINGS}
    return {"image": image, "caption": CAPTION, "score": -0.42424, **known}


def names_of(images: int) -> Iterator[str]:
    for number in range(images):
        yield f"photos/{number // 1000:05d}/{number:09d}.jpg"


def sleeper(shard_s: float, failures: float) -> type:
    """The class of an actor that sleeps `shard_s` seconds per shard.

    failures: the share of shards at which the actor dies. The class is defined in a function, so
    that Ray pickles it: other processes cannot import this module.
    """

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
            pieces = max(1, round(seconds))  # one per second, like a real actor
            for piece in range(pieces):
                time.sleep(seconds / pieces)
                if self.random.random() < failures / pieces:
                    os._exit(1)
                own = left[piece * len(left) // pieces : (piece + 1) * len(left) // pieces]
                counts = {"images": len(task.entries), "failed": 0}
                lines = [line_of(entry["image"]) for entry in own]
                yield lines, [], counts if piece == pieces - 1 else None, None

    return Sleeper


class Measured(RayEngine):
    """The engine, which also records when it captions, and loses a node half way."""

    def __init__(self, cluster: Cluster, kind: type, nodes: Any, images: int):
        super().__init__(cluster, lambda: None, kind)
        self.nodes, self.left = nodes, images // 2
        self.planned_mb = 0.0
        self.marks: list[tuple[float, float]] = []  # (wall, CPU) seconds at start and end

    def caption(self, request: Any, plan: Any, shards: list[int], count: Any) -> None:
        def counted(images: int) -> None:
            count(images)
            self.left -= images
            if self.nodes is not None and self.left <= 0:
                nodes, self.nodes = self.nodes, None
                nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)

        self.planned_mb = peak()
        self.marks.append((time.monotonic(), time.process_time()))
        super().caption(request, plan, shards, counted)
        self.marks.append((time.monotonic(), time.process_time()))


def measure(given: argparse.Namespace, images: int, size: int, folder: Path) -> dict[str, Any]:
    """Run once with `images` images in shards of `size`: memory, seconds, CPU seconds by phase."""
    from ray.cluster_utils import Cluster as Nodes

    listed, growing = folder / "photos.txt", given.growth is not None
    with open(listed, "w") as file:
        file.writelines(f"{name}\n" for name in names_of(images))
    nodes = Nodes(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
    for _ in range(given.machines):
        nodes.add_node(num_cpus=given.actors * CPUS, **NODE)
    request = Request(str(listed), folder / "captions.jsonl", shard_size=size)
    kind = sleeper(0, 0) if growing else sleeper(given.seconds, given.failures)
    base, start = peak(), time.process_time()
    with contextlib.closing(Cluster(nodes.address, "cpu")) as cluster:
        engine = Measured(cluster, kind, None if growing else nodes, images)
        BulkCaptioning(request, {"checkpoint": "sleeps"}, engine, False).run()
    end = time.process_time()
    nodes.shutdown()
    with open(request.out) as file:
        for name in names_of(images):
            line = file.readline()
            if json.loads(line) != line_of(str(folder / name)):
                raise RuntimeError(f"not the line of {name}: {line}")
        if file.readline():
            raise RuntimeError("there are more lines than images")
    (wall, planned), (wall_end, captioned) = engine.marks
    found = {
        **{"images": images, "shards": -(-images // size), "captioning_s": wall_end - wall},
        **{"plan_cpu_s": planned - start, "captioning_cpu_s": captioned - planned},
        **{"merge_cpu_s": end - captioned, "base_mb": base, "planned_mb": engine.planned_mb},
        "peak_mb": peak(),
    }
    return {key: round(value, 2) for key, value in found.items()}


def peak() -> float:
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    add = parser.add_argument
    add("--shards", type=int, default=10_000)
    add("--size", type=int, default=32, help="images per shard")
    add("--machines", type=int, default=4)
    add("--actors", type=int, default=16, help="actors per machine")
    add("--seconds", type=float, default=2.0, help="seconds per shard, on average")
    add("--failures", type=float, default=0.005, help="share of shards at which the actor dies")
    add("--growth", type=int, nargs="+", help="numbers of images to measure; the last flag")
    given = parser.parse_args(argv)
    if given.growth is not None and len(given.growth) > 1:  # peak memory is that of a process
        before = argv[: argv.index("--growth")]
        for images in given.growth:
            command = [sys.executable, "-m", "benchmarks.scale", *before, "--growth", str(images)]
            subprocess.run(command, check=True)
        return 0
    images, size = given.shards * given.size, given.size
    if given.growth is not None:
        images, size = given.growth[0], planning.MOST
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(given, images, size, Path(folder))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
