"""The updates that an actor sends of a shard, without Ray; with it, see test_ray.py."""

import os
from functools import partial

import pytest
import torch

from captioning.bulk import actors
from captioning.bulk.actors import CaptioningActor
from captioning.bulk.model import CheckpointModel
from captioning.bulk.request import Request
from captioning.bulk.shards import ShardTask
from captioning.runtime import progress


@pytest.fixture
def actor(checkpoint, photos, tmp_path, monkeypatch):
    """Return an actor with its captioner loaded; relative paths are those of the photos."""
    monkeypatch.setattr(progress, "_collected_lines", None)
    monkeypatch.chdir(tmp_path)
    actor = CaptioningActor(str(photos))
    changes = {"eval_batch_size": 2, "num_workers": 0, "precision": "fp32"}
    load = partial(CheckpointModel, str(checkpoint), None, changes, 1, torch.device("cpu"))
    assert actor.load(load, Request(str(photos), tmp_path / "a.jsonl"))[1:] == (1, None)
    return actor


@pytest.fixture
def entries(photos):
    return [{"image": path.name} for path in sorted(photos.glob("*.png"))]


def test_the_updates_are_the_captions_of_a_shard(actor, entries, run, photos, monkeypatch):
    whole, _ = run(photos)
    known = {os.path.basename(line["image"]): line["caption"] for line in whole}
    monkeypatch.setattr(actors, "SEND_S", 0)
    updates = list(actor.caption(ShardTask(0, 0, entries, [], entries[0]["image"])))
    assert [len(made.lines) for made in updates] == [2, 2, 2, 2, 1, 0]
    lines = [line for made in updates for line in made.lines]
    assert {line["image"]: line["caption"] for line in lines}.items() <= known.items()
    assert [made.counts for made in updates[:-1]] == [None] * 5
    assert updates[-1].counts == {"images": 9, "failed": 0}
    (rest,) = list(actor.caption(ShardTask(0, 0, entries, lines[:8], None)))[:1]
    assert rest.lines == lines[8:]


def test_a_machine_without_the_images_does_not_fail_them(actor):
    entries = [{"image": "/elsewhere/a.png"}]
    (made,) = actor.caption(ShardTask(0, 0, entries, [], "/elsewhere/a.png"))
    assert made.problem.startswith("/elsewhere/a.png is not on this machine") and not made.lines
    (made,) = actor.caption(ShardTask(0, 0, entries, [], None))  # the driver lacks it as well
    assert made.counts == {"images": 0, "failed": 1}


def test_a_missing_checkpoint_is_one_line(actor):
    load = partial(CheckpointModel, "none.pth", None, {}, 1, torch.device("cpu"))
    loaded = actor.load(load, None)
    assert "none.pth" in loaded.problem and "\n" not in loaded.problem
