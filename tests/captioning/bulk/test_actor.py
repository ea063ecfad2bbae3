"""The updates that an actor sends of a shard, without Ray; with it, see test_ray.py."""

from functools import partial

import pytest
import torch

from captioning.bulk import actors
from captioning.bulk.actors import CaptioningActor
from captioning.bulk.filtering import FilteredModel
from captioning.bulk.model import CheckpointModel
from captioning.bulk.request import Request
from captioning.runtime import progress

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture
def actor(checkpoint, photos, tmp_path, monkeypatch):
    """Return a function that makes an actor; relative paths are those of the photos."""
    monkeypatch.setattr(progress, "_collected_lines", None)
    monkeypatch.chdir(tmp_path)
    changes = {"eval_batch_size": 2, "num_workers": 0, "precision": "fp32"}
    load = partial(CheckpointModel, str(checkpoint), None, changes, 1, CPU)

    def make(load=load, **settings):
        actor = CaptioningActor(str(photos))
        request = Request(str(photos), tmp_path / "a.jsonl", **settings)
        return actor, actor.load(load, request), request

    make.load = load
    return make


@pytest.fixture
def entries(photos):
    return [{"image": path.name} for path in sorted(photos.glob("*.png"))]


def captions(lines):
    return {line["image"].rpartition("/")[2]: line["caption"] for line in lines}


def test_the_updates_are_the_captions_of_a_shard(actor, entries, run, photos, monkeypatch):
    whole, _ = run(photos)
    monkeypatch.setattr(actors, "SEND_S", 0)
    made, loaded, _ = actor()
    assert loaded[1:] == (1, None)
    updates = list(made.caption(0, 0, entries, [], entries[0]["image"]))
    assert [len(update.lines) for update in updates] == [2, 2, 2, 2, 1, 0]
    lines = [line for update in updates for line in update.lines]
    assert captions(lines).items() <= captions(whole).items()
    assert [update.counts for update in updates] == [None] * 5 + [{"images": 9, "failed": 0}]
    rest = next(made.caption(0, 0, entries, lines[:8], None))
    assert rest.lines == lines[8:]


def test_an_actor_filters_as_the_process_does(actor, entries, run, photos, itm_checkpoint):
    given = ["--filter", "itm>0.5", "--itm_model", str(itm_checkpoint)]
    kept, _ = run(photos, "--no-recursive", *given)
    load = partial(FilteredModel, "itm>0.5", str(itm_checkpoint), CPU, torch.float32, actor.load)
    made, loaded, request = actor(load, filter="itm>0.5", sidecar=".txt")
    assert loaded[2] is None and "; filter: loaded " in loaded[0]
    updates = list(made.caption(0, 0, entries, [], None))
    lines = [line for update in updates for line in update.lines]
    assert captions(request.kept(lines)) == captions(kept)
    counts = {"images": len(kept), "failed": 0, "filtered": 9 - len(kept)}
    assert updates[-1].counts == counts and 0 < len(kept) < 9
    assert len(list(photos.rglob("*.txt"))) == len(kept)


def test_what_a_machine_lacks_is_one_line_and_no_failed_image(actor):
    entries = [{"image": "/elsewhere/a.png"}]
    made, _, _ = actor()
    (update,) = made.caption(0, 0, entries, [], "/elsewhere/a.png")
    assert update.problem.startswith("/elsewhere/a.png is not on this machine")
    (update,) = made.caption(0, 0, entries, [], None)  # the driver lacks it as well
    assert update.counts == {"images": 0, "failed": 1}
    _, loaded, _ = actor(partial(CheckpointModel, "none.pth", None, {}, 1, CPU))
    assert "none.pth" in loaded[2] and "\n" not in loaded[2]
