"""The driver's side of the Ray engine, with a pool that captions in this process."""

from types import SimpleNamespace

import pytest

from captioning.bulk.actor_pool import Worker
from captioning.bulk.local_engine import write_outputs
from captioning.bulk.ray_engine import _Dispatcher
from captioning.bulk.request import Request
from captioning.bulk.run import BulkCaptioning
from captioning.bulk.shards import ShardUpdate
from captioning.runtime import signals
from tests.captioning.bulk.conftest import read_lines


class OneWorker:
    """An engine and its pool. A worker writes the outputs of a shard when it gets it.

    stops: whether a stop arrives before the first update.
    """

    def __init__(self, request, stops):
        self.request, self.stops, self.updates = request, stops, {}
        caption = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.write))
        machine = SimpleNamespace(id="a", name="a")
        self.workers = [Worker(SimpleNamespace(caption=caption), machine, None)]
        self.workers[0].capacity = 1

    def write(self, task):
        images = [entry["image"] for entry in task.entries]
        lines = [{"image": name, "caption": "a photo", "score": 0.0} for name in images]
        counts = write_outputs(self.request, task.number, task.entries, lines)
        self.updates[task.shard] = ShardUpdate(lines[len(task.lines) :], [], counts)
        return task.shard

    def start(self, request, shards):
        pass

    def caption(self, request, plan, shards, on_images):
        _Dispatcher(self, request, plan, shards, on_images).run()

    def start_actors(self, request, limit):
        pass

    def least_busy(self):
        return self.workers[0] if self.workers[0].has_room() else None

    def poll(self):
        if self.stops:
            raise signals.Stopped
        for stream in list(self.workers[0].parts):
            yield self.workers[0], stream, self.updates[stream]

    def release(self, worker):
        pass


def test_outputs_that_precede_a_stop_are_no_captions_of_others(photos, tmp_path):
    pytest.importorskip("webdataset")
    out, tars = tmp_path / "out" / "captions.jsonl", tmp_path / "tars"
    request = Request(str(photos), out, sidecar=".txt", write_shards=str(tars))

    def run(stops):
        BulkCaptioning(request, {"checkpoint": "a"}, OneWorker(request, stops), False).run()

    with pytest.raises(signals.Stopped):
        run(stops=True)
    assert len(list(photos.rglob("*.txt"))) == 10 and (tars / "00000.tar").exists()
    run(stops=False)
    assert len(read_lines(out)) == 10
    assert [path.name for path in tars.glob("*.tar")] == ["00000.tar"]
