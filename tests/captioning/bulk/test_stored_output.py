"""Captions written to an object store: byte by byte those on disk, whatever is lost on the way."""

import os
import random
import signal

import pytest

from captioning import caption
from captioning.bulk import stored_output
from captioning.files import stores, uploads
from tests.captioning.object_store import FAULTS
from tests.soak.processes import Processes

OUT = "s3://bucket/within/captions.jsonl"
NAMES = ("captions.jsonl", "captions.jsonl.done", "failed.jsonl")


def kill_before(request):
    """A hook: the process is killed by -9 before so many files are written or removed there."""

    def hook(rank):
        left = request

        def counted(original):
            def call(*arguments):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments)

            return call

        uploads.upload, uploads.remove = counted(uploads.upload), counted(uploads.remove)

    return hook


@pytest.fixture
def call(checkpoint, photos, tmp_path, monkeypatch):
    """Return a function that captions on the machine of a name; the exit code and what was said."""
    (photos / "bad.png").write_bytes(b"no image")

    def run(machine, *arguments, out=OUT, hook=None):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        given = [str(checkpoint), str(photos), "--out", str(out), "--device", "cpu"]
        given += ["--shard_size", "3", "--batch_size", "2", *arguments]
        process = Processes(caption.main, given, tmp_path / "said", hook=hook)
        (code,) = process.wait()
        assert "S3CR3T" not in process.said() and "Traceback" not in process.said()
        return code, process.said()

    return run


@pytest.fixture
def on_disk(call, tmp_path):
    """Return what a run that writes to this disk writes."""
    assert call("disk", out=tmp_path / "disk/captions.jsonl")[0] == 0
    return {name: (tmp_path / "disk" / name).read_bytes() for name in NAMES}


def in_store():
    return {name: stores.whole(f"s3://bucket/within/{name}") for name in stores.stamps(OUT[:18])}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_killed_it_goes_on_here_or_elsewhere(s3, call, on_disk, elsewhere):
    s3.faults += FAULTS * 2
    dice, kills = random.Random(4), 0
    while call(f"m{kills if elsewhere else 0}", hook=kill_before(dice.randint(4, 12)))[0] != 0:
        kills += 1
        assert kills < 30
    assert kills > 1 and s3.faults == []
    assert in_store() == on_disk
    code, said = call("another")
    assert code == 0 and "done 0, skipped 10, failed 1" in said and OUT in said
    assert in_store() == on_disk


def test_what_another_machine_finished_is_not_made_again(s3, call, on_disk):
    assert call("one", hook=kill_before(8))[0] == -signal.SIGKILL
    markers = [name for name in stores.stamps(f"{OUT}.parts") if name.endswith(".done")]
    assert len(markers) == 2
    code, said = call("two")
    assert code == 0 and f"going on with {OUT}" in said and "captions are in " + OUT in said
    assert in_store() == on_disk
    # The first machine's plan is no more.
    code, said = call("one")
    assert code == 0 and "skipped 10" in said and in_store() == on_disk


def test_a_refusal_in_the_middle_loses_nothing(s3, call, on_disk):
    s3.refused = ".000002.jsonl"
    code, said = call("one")
    (error,) = (line for line in said.splitlines() if line.startswith("error:"))
    assert code == 2 and "not allowed" in error and "nothing is lost" in error
    s3.refused = None
    assert call("one")[0] == 0 and in_store() == on_disk


def test_a_machine_that_was_overtaken_writes_nothing(s3, call, on_disk):
    def hook(rank):
        original = stored_output.before_merging

        def overtaken(request, plan):
            stored_output.remove(request)
            original(request, plan)

        stored_output.before_merging = overtaken

    code, said = call("one", hook=hook)
    assert code == 2 and f"{OUT}: another machine has gone on with it" in said
    assert "captions.jsonl" not in in_store()
    assert call("two")[0] == 0 and in_store() == on_disk


def test_a_plan_that_is_damaged_is_dropped_when_asked_to(s3, call, on_disk):
    s3.files.pipe_file("bucket/within/captions.jsonl.parts/plan.json", b'{"file": ')
    code, said = call("one")
    assert code == 2 and f"error: {OUT}.parts/plan.json is damaged" in said and "--restart" in said
    assert call("one", "--restart")[0] == 0 and in_store() == on_disk
