"""A Ray cluster of several nodes on this machine, with actors that caption without a model."""

import contextlib
from unittest import mock

from captioning.bulk import actor_pool
from captioning.bulk.cluster import Cluster
from captioning.bulk.ray_engine import RayEngine
from captioning.runtime.program import run_program


class Nodes:
    """One node without a CPU, where the driver is, and others that tests add and remove."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        quick = {"health_check_period_ms": 300, "health_check_failure_threshold": 12}
        self._own = {"include_dashboard": False, "object_store_memory": 80 << 20}
        head = {**self._own, "num_cpus": 0, "_system_config": quick}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self.cluster.address
        self.nodes = []

    def add(self):
        """Add a node with room for one actor; returns its id."""
        self.nodes.append(self.cluster.add_node(num_cpus=1, **self._own))
        return self.nodes[-1].node_id

    def lose(self, node_id):
        """Remove a node as a power failure would."""
        (node,) = (node for node in self.nodes if node.node_id == node_id)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self):
        self.cluster.shutdown()


def light_actor(trap=None):
    """Return an actor class that imports no torch, so that it starts within a second.

    trap: called with an image before its line is made, there.
    """

    class Light:
        def __init__(self, folder):
            pass

        def load(self, load, request):
            return load()

        def caption(self, shard, number, entries, lines, local_file):
            for index, entry in enumerate(entries[len(lines) :]):
                if trap is not None:
                    trap(entry["image"])
                line = {"image": entry["image"], "caption": f"of {entry['image']}", "score": 0.0}
                done = len(lines) + index + 1 == len(entries)
                counts = {"images": len(entries), "failed": 0}
                yield [line], [], counts if done else None, None

    return Light


def caption_lightly(address, request, trap=None, loaded=("light", 1, None)):
    """Return the exit code of a run with such actors."""
    from captioning.bulk.run import BulkCaptioning

    def program():
        with contextlib.closing(Cluster(address, "cpu")) as cluster:
            engine = RayEngine(cluster, lambda: loaded)
            BulkCaptioning(request, {"checkpoint": "light"}, engine, False).run()

    with mock.patch.object(actor_pool, "CaptioningActor", light_actor(trap)):
        return run_program(program)
