"""A Ray cluster writes the files of one process, whichever actors are lost."""

import signal

import pytest

from captioning import caption
from captioning.bulk.actor_pool import ActorPool
from captioning.bulk.model import CheckpointModel
from captioning.bulk.ray_engine import RayEngine
from captioning.bulk.request import Request
from captioning.files import stores
from tests.captioning.bulk.conftest import killed_after, read_lines
from tests.captioning.bulk.ray_cluster import Nodes, caption_lightly
from tests.processes import Processes
from tests.programs import one_error_line

pytest.importorskip("ray", reason="requirements-cluster.txt has it")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Replace lost actors at once."""
    monkeypatch.setattr("captioning.bulk.actor_pool.POLL_MACHINES_S", 0.2)


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def node(nodes):
    """The id of a node that stays."""
    return nodes.add()


@pytest.fixture
def caption_on(checkpoint, photos, nodes, node, tmp_path, capsys):
    """Return a function that captions the photos, and returns the files and the log."""

    def call(folder, *more, ray=True):
        out = tmp_path / folder / "captions.jsonl"
        given = [str(checkpoint), str(photos), "--out", str(out), "--device", "cpu"]
        given += ["--shard_size", "3", "--batch_size", "1", "--num_workers", "0", *more]
        given += ["--engine", "ray", "--ray-address", nodes.address] if ray else []
        assert caption.main(given) == 0, capsys.readouterr().err
        return contents(out.parent), capsys.readouterr().err

    return call


def contents(folder):
    """The bytes of each file by its name."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_with_lost_and_added_nodes_the_files_are_those_of_one_process(
    caption_on, photos, nodes, node, tmp_path, monkeypatch
):
    """A node joins, captions, and is lost in mid-shard."""
    (photos / "bad.png").write_bytes(b"no image")
    flags = ["--sidecar", "--write-shards"]
    alone, _ = caption_on("alone", *flags, str(tmp_path / "alone" / "tars"), ray=False)
    sidecars = contents(photos)
    for path in photos.rglob("*.txt"):
        path.unlink()
    sent_by, joined, lost, marker = [], [], [], tmp_path / "joined"
    receive, least_busy = RayEngine._receive, ActorPool.least_busy

    class Slow(CheckpointModel):
        def lines(self, batch, offset, request):
            import time

            import ray

            from captioning.bulk import actors

            actors.SEND_S = 0  # each batch is an update
            time.sleep(0.1)
            own_node = ray.get_runtime_context().get_node_id()
            while offset and marker.exists() and marker.read_text() == own_node:
                time.sleep(0.1)  # until the node that joined is lost, in mid-shard
            return super().lines(batch, offset, request)

    def taken(self, worker, stream, update):
        receive(self, worker, stream, update)
        sent_by.append(worker.machine.id)
        if len(sent_by) == 1:
            joined.append(nodes.add())
            marker.write_text(joined[0])
        elif worker.machine.id == joined[0] and not lost and update.counts is None:
            lost.append(joined[0])
            nodes.lose(joined[0])

    def chosen(self):
        """Only the node that joined, until it has sent captions."""
        if joined and joined[0] not in sent_by:
            new = (w for w in self.workers if w.machine.id == joined[0] and w.capacity)
            return next((worker for worker in new if not worker.shards), None)
        return least_busy(self)

    monkeypatch.setattr(caption, "CheckpointModel", Slow)
    monkeypatch.setattr(RayEngine, "_receive", taken)
    monkeypatch.setattr(ActorPool, "least_busy", chosen)
    found, log = caption_on("disturbed", *flags, str(tmp_path / "disturbed" / "tars"))
    assert set(sent_by) == {node, *joined} and lost == joined
    assert "lost a captioner on" in log
    assert "11/11" in log and "done 10 (" in log and "failed 1 (" in log
    assert contents(photos) == sidecars
    assert {name: data.replace(b"/disturbed/", b"/alone/") for name, data in found.items()} == alone


def test_killed_and_stopped_the_same_command_goes_on(photos, nodes, node, tmp_path, capsys):
    """An actor that outlived its driver would occupy the only place."""
    request = Request(str(photos), tmp_path / "captions.jsonl", shard_size=2)

    def killed(address):
        with killed_after(3, signal.SIGKILL):
            return caption_lightly(address, request)

    process = Processes(killed, nodes.address, tmp_path / "log")
    assert process.wait() == [-signal.SIGKILL], process.said()
    made = [line for part in request.parts.glob("0*.jsonl") for line in read_lines(part)]
    assert len(made) == 2 and not request.out.exists()  # and a third in its journal
    with killed_after(2):
        assert caption_lightly(nodes.address, request) == 0
    log = capsys.readouterr().err
    assert "stopped by SIGTERM; run the same command again to continue" in log
    assert "continuing" in log and "| 3/10" in log and not request.out.exists()
    assert caption_lightly(nodes.address, request) == 0
    assert [line["caption"] for line in read_lines(request.out)] == [
        f"of {path}" for path in sorted(map(str, photos.rglob("*.png")))
    ]


def test_a_shard_that_killed_one_actor_is_tried_again_and_one_that_killed_two_named(
    photos, nodes, node, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("captioning.bulk.ray_engine.MAX_FAILURES_IN_A_ROW", 2)  # usually 3
    deadly = sorted(str(path) for path in photos.glob("*.png"))[4]

    def trap(image):
        import os

        if image == deadly:
            os.kill(os.getpid(), 9)

    request = Request(str(photos), tmp_path / "captions.jsonl", shard_size=2)
    assert caption_lightly(nodes.address, request, trap) == 2
    log = capsys.readouterr().err
    assert deadly in one_error_line(log, "error: shard 2: 2 captioners were lost at")
    assert sum(line.startswith("lost a captioner on") for line in log.splitlines()) == 2
    assert len(list(request.parts.glob("*.done"))) == 4 and not request.out.exists()


def test_an_error_in_an_actor_ends_the_run_in_one_line(photos, nodes, node, tmp_path, capsys):
    request = Request(str(photos), tmp_path / "captions.jsonl")
    loaded = ("", 0, "x.pth: no such file")
    assert caption_lightly(nodes.address, request, loaded=loaded) == 2
    line = one_error_line(capsys, "] x.pth: no such file")
    assert line.startswith("error: [") and line.endswith("file")


def test_actors_read_and_write_a_store_as_a_process_does_the_disk(s3, checkpoint, photos, tmp_path):
    """Actors read photos and write tars and sidecars there; the driver writes the captions.

    Without --ray-address, the program starts Ray.
    """
    for path in photos.rglob("*.png"):
        s3.files.put_file(str(path), f"bucket/photos/{path.relative_to(photos)}")
    given = [str(checkpoint), "s3://bucket/photos", "--device", "cpu", "--shard_size", "3"]
    tars = ["--write-shards", str(tmp_path / "tars")]
    assert caption.main([*given, *tars, "--out", str(tmp_path / "captions.jsonl")]) == 0
    given += ["--engine", "ray", "--sidecar", "--write-shards", "s3://bucket/tars"]
    assert caption.main([*given, "--out", "s3://bucket/within/captions.jsonl"]) == 0
    names = ["captions.jsonl", "captions.jsonl.done"]
    assert sorted(stores.stamps("s3://bucket/within")) == names
    for name in names:
        assert stores.read_bytes(f"s3://bucket/within/{name}") == (tmp_path / name).read_bytes()
    expected = contents(tmp_path / "tars")
    assert stores.stamps("s3://bucket/tars").keys() == expected.keys() and len(expected) == 6
    for name, content in expected.items() - {("owner.json", expected["owner.json"])}:
        assert stores.read_bytes(f"s3://bucket/tars/{name}") == content
    for line in read_lines(tmp_path / "captions.jsonl"):
        beside = stores.read_bytes(line["image"].replace(".png", ".txt"))
        assert beside.decode() == line["caption"] + "\n"
