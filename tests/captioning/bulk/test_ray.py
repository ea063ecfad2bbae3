"""A Ray cluster writes the files of one process, whichever machines are lost."""

import os
import signal

import pytest

from captioning.bulk import ray_engine, work
from tests.programs import one_error_line

ray = pytest.importorskip("ray", reason="the extra cluster has it")

pytestmark = pytest.mark.slow


class Nodes:
    """One node without a CPU, where the driver is, and others that tests add and remove."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        quick = {"health_check_period_ms": 300, "health_check_failure_threshold": 12}
        self._own = {"include_dashboard": False, "object_store_memory": 80 << 20}
        head = {**self._own, "num_cpus": 0, "_system_config": quick}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = []

    def add(self):
        """Add a node with room for one task; returns its id."""
        self.nodes.append(self.cluster.add_node(num_cpus=1, **self._own))
        return self.nodes[-1].node_id

    def lose(self, node_id):
        """Remove a node as a power failure would."""
        (node,) = (node for node in self.nodes if node.node_id == node_id)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def nodes():
    nodes = Nodes()
    yield nodes
    nodes.cluster.shutdown()


@pytest.fixture(autouse=True)
def joined(nodes, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", nodes.cluster.address)
    yield
    ray.shutdown()
    for node in list(nodes.nodes):
        nodes.lose(node.node_id)


FLAGS = ["--shard_size", 2, "eval_batch_size=1", "num_workers=0"]


def slowly(caption, held=None):
    """Return a task that pauses after each unit, and on the node `held` until the node is lost."""

    def task(*given):
        import time

        import ray

        keep, own = work.Worker._keep, ray.get_runtime_context().get_node_id()

        def kept_later(self, unit, *rest):
            while unit and held and held.exists() and held.read_text() == own:
                held.with_suffix(".reached").touch()
                time.sleep(0.1)
            time.sleep(0.5)
            return keep(self, unit, *rest)

        if keep.__name__ != "kept_later":  # Ray runs many tasks in one process
            work.Worker._keep = kept_later
        return caption(*given)

    return task


def contents(folder):
    """The bytes of each file by its name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_with_lost_and_added_nodes_the_files_are_those_of_one_process(
    call, photos, nodes, tmp_path, monkeypatch
):
    """A node joins, captions, and is lost in the middle of a unit."""
    (photos / "bad.png").write_bytes(b"no image")
    alone, disturbed, held = (tmp_path / name for name in ("alone", "disturbed", "held"))
    call(*FLAGS, "--write-shards", alone / "tars", out=alone / "captions.jsonl")
    _, lost = nodes.add(), nodes.add()
    held.write_text(lost)

    monkeypatch.setattr(ray_engine, "_caption", slowly(ray_engine._caption, held))
    wait = ray.wait

    def wait_and_lose(*given, **named):
        if held.with_suffix(".reached").exists() and lost in [n.node_id for n in nodes.nodes]:
            nodes.lose(lost)
        return wait(*given, **named)

    monkeypatch.setattr(ray, "wait", wait_and_lose)
    log = call(
        *FLAGS,
        "--engine",
        "ray",
        "--write-shards",
        disturbed / "tars",
        out=disturbed / "captions.jsonl",
    )
    assert "done 10 (" in log and "failed 1 (" in log
    assert lost not in [node.node_id for node in nodes.nodes]
    expected = {
        name: data.replace(b"/disturbed/", b"/alone/") for name, data in contents(disturbed).items()
    }
    assert expected == contents(alone)


def test_killed_and_stopped_the_same_command_goes_on(call, start, photos, nodes, tmp_path):
    nodes.add()

    def stop(number):
        def hook(rank):
            wait, ray_engine._caption = ray.wait, slowly(ray_engine._caption)

            def wait_and_stop(*given, **named):
                ready, pending = wait(*given, **named)
                if ready:
                    os.kill(os.getpid(), number)
                return ready, pending

            ray.wait = wait_and_stop

        return hook

    process = start(*FLAGS, "--engine", "ray", hook=stop(signal.SIGKILL))
    assert process.wait() == [-signal.SIGKILL], process.said()
    process = start(*FLAGS, "--engine", "ray", hook=stop(signal.SIGTERM))
    assert process.wait() == [0], process.said()
    assert "stopped by SIGTERM; run the same command again to continue" in process.said()
    log = call(*FLAGS, "--engine", "ray")
    assert "continuing" in log and "done 10 (" in log and "failed 0" in log


def test_cuda_on_a_cluster_without_gpus_is_refused(call, photos, nodes):
    nodes.add()
    log = call("--engine", "ray", "--device", "cuda", code=2)
    assert "no machine has a GPU; add one or use cpu" in one_error_line(log, "error: ")


def test_an_error_in_a_task_ends_the_run_in_one_line(call, photos, nodes, monkeypatch):
    nodes.add()
    log = call("--engine", "ray", "num_beams=0", code=2)
    assert "num_beams" in one_error_line(log, "error: ")
