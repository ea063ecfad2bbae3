"""Killed at any instant, the program continues: no image twice, none missing."""

import json
import os
import random
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from captioning import caption
from captioning.bulk import plan, work
from tests.captioning.bulk.conftest import read_lines
from tests.captioning.bulk.kills import kill_before, use_late_store
from tests.captioning.tar_files import write_tar
from tests.processes import Processes


@pytest.fixture
def memory():
    """Return a folder on a disk in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        yield Path(name)


@pytest.fixture
def source(photos, tmp_path):
    """Return inputs: a folder with a bad photo, and a tar."""
    (photos / "bad.png").write_bytes(b"no image")
    write_tar(tmp_path / "a.tar", sorted(photos.glob("scene*.png"))[:5])
    return [photos, tmp_path / "a.tar"]


@pytest.fixture
def begin(checkpoint, source, itm_checkpoint, tmp_path):
    """Return a function that starts the program in processes, which keep each batch."""

    def start(out, processes=1, hook=None):
        def hooks(rank):
            use_late_store()
            work.KEEP_S, plan.TRIES, work.TRIES = 0, 1000, 1000
            if hook is not None:
                hook(rank)

        folder = out.rpartition("/")[0]
        given = [checkpoint, *source, "--out", out, "--device", "cpu", "--shard_size", 3]
        given += ["--filter", "itm>0.5", "--itm_model", itm_checkpoint]
        given += ["--write-shards", f"{folder}/tars", "eval_batch_size=2", "num_workers=0"]
        log = tmp_path / f"log{os.urandom(4).hex()}"
        return Processes(caption.main, list(map(str, given)), log, processes, hooks)

    return start


# A plan whose process was killed before its header was written, and a file that was not renamed.
NOT_LISTED = r"captions\.jsonl\.parts/\w+/|.*\.new"


def contents(folder):
    """Return the bytes of each file by its name, without what a late listing has hidden."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found = {name: data for name, data in found.items() if not re.match(NOT_LISTED, name)}
    marker = json.loads(found.pop("captions.jsonl.done"))
    marker["settings"].pop("write_shards")
    return {**found, "marker": marker}


def wait(run):
    """Return the exit codes. As under torchrun, when one process dies, all end."""
    while not run.ended() and all(code in (None, 0) for code in exit_codes(run)):
        run.ranks[0].join(0.02)
    if any(code not in (None, 0) for code in exit_codes(run)):
        run.send(signal.SIGKILL)
    return run.wait()


def exit_codes(run):
    return [process.exitcode for process in run.ranks]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.parametrize("where", ["disk", "store"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_before_any_operation_it_writes_the_same_files(begin, memory, seed, where, kills):
    """In one to three processes, with captions, failures, dropped captions and tars."""
    scheme = "late://" if where == "store" else "/"
    run = begin(f"{scheme}{str(memory)[1:]}/whole/captions.jsonl")
    assert run.wait() == [0], run.said()
    expected = contents(memory / "whole")
    assert len(expected["captions.jsonl"].splitlines()) >= 2
    assert {"captions.filtered.jsonl", "captions.failed.jsonl"} < expected.keys()
    dice, killed, folder = random.Random(seed), 0, None
    while killed < kills or folder.exists():
        folder = folder or memory / f"killed{killed}"
        out = f"{scheme}{str(folder)[1:]}/captions.jsonl"
        processes = dice.choice([1, 1, 2, 3]) if killed < kills else 1
        hook = kill_before(dice.randint(3, 60), folder, dice.randrange(processes))
        run = begin(out, processes, hook if killed < kills else None)
        codes = wait(run)
        # A process that another has left in the lurch ends with 1.
        assert set(codes) <= ({0, 1, -9} if -9 in codes else {0}), run.said()
        killed += -signal.SIGKILL in codes
        if set(codes) == {0}:
            assert contents(folder) == expected, run.said()
            shutil.rmtree(folder)
            folder = None if killed < kills else folder
    print(f"{killed} kills")


def test_a_unit_that_ends_its_process_three_times_is_set_aside_and_named(
    run, start, photos, tmp_path
):
    deadly = sorted(photos.glob("scene*.png"))[5]

    def hook(rank):
        content = work._Images._content

        def trap(self, name, *data):
            if name == str(deadly):
                os.kill(os.getpid(), signal.SIGKILL)
            return content(self, name, *data)

        work._Images._content = trap

    flags = ["--shard_size", 2, "num_workers=1"]
    for code in (1, -signal.SIGKILL, -signal.SIGKILL):  # first a process that reads images dies
        process = start(*flags, hook=hook)
        assert process.wait() == [code], process.said()
    process = start(*flags, hook=hook)
    assert process.wait() == [0], process.said()
    failed = read_lines(tmp_path / "out" / "captions.failed.jsonl")
    assert len(failed) == 2 and str(deadly) in [line["image"] for line in failed]
    assert all("set aside: 3 processes ended while" in line["error"] for line in failed)
    assert "done 8" in process.said()
    lines, _ = run(photos, "--retry-failed", *map(str, flags))
    assert len(lines) == 10
