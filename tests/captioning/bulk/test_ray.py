"""A Ray cluster writes the files of one process, whichever machines are lost."""

import os
import signal

import pytest

from captioning.bulk import ray_engine, work
from tests.captioning.bulk.conftest import contents
from tests.programs import one_error_line

ray = pytest.importorskip("ray", reason="the extra cluster has it")

pytestmark = pytest.mark.slow
QUICK = {"health_check_period_ms": 300, "health_check_failure_threshold": 12}
SMALL = {"include_dashboard": False, "object_store_memory": 80 << 20}
FLAGS = ["--shard_size", 2, "eval_batch_size=1", "num_workers=0"]


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one node without a CPU, where the driver is."""
    from ray.cluster_utils import Cluster

    head = {**SMALL, "num_cpus": 0, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


@pytest.fixture(autouse=True)
def nodes(cluster, monkeypatch):
    """Two nodes with room for one task each."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    nodes = [cluster.add_node(num_cpus=1, **SMALL) for _ in range(2)]
    yield nodes
    ray.shutdown()
    for node in nodes:
        cluster.remove_node(node, allow_graceful=False)


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


def test_with_a_lost_node_the_files_are_those_of_one_process(
    run, photos, cluster, nodes, tmp_path, monkeypatch
):
    """It is lost, as in a power failure, in the middle of a unit."""
    (photos / "bad.png").write_bytes(b"no image")
    held, lost = tmp_path / "held", nodes[1]
    run(photos, *FLAGS, "--write-shards", tmp_path / "alone" / "tars", folder="alone")
    held.write_text(lost.node_id)
    monkeypatch.setattr(ray_engine, "_caption", slowly(ray_engine._caption, held))
    wait = ray.wait

    def wait_and_lose(*given, **named):
        if held.with_suffix(".reached").exists() and lost in nodes:
            nodes.remove(lost)
            cluster.remove_node(lost, allow_graceful=False)
        return wait(*given, **named)

    monkeypatch.setattr(ray, "wait", wait_and_lose)
    tars = ["--write-shards", tmp_path / "disturbed" / "tars"]
    _, log = run(photos, *FLAGS, "--engine", "ray", *tars, folder="disturbed")
    assert "done 10, skipped 0, failed 1" in log and lost not in nodes
    found = contents(tmp_path / "disturbed").items()
    expected = {name: data.replace(b"/disturbed/", b"/alone/") for name, data in found}
    assert expected == contents(tmp_path / "alone")


def test_killed_and_stopped_the_same_command_goes_on(run, start, photos):
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
    _, log = run(photos, *FLAGS, "--engine", "ray")
    assert "continuing" in log and "done 10, skipped 0, failed 0" in log


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--device", "cuda"], "no machine has a GPU; add one or use cpu"),
        (["num_beams=0"], "num_beams"),  # found by a task
    ],
)
def test_an_error_ends_the_run_in_one_line(run, photos, flags, line):
    one_error_line(run(photos, "--engine", "ray", *flags, code=2)[1], line)
