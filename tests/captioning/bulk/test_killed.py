"""Killed at any instant, the program continues: no image twice, none missing."""

import json
import os
import random
import re
import shutil
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from captioning import caption
from captioning.bulk import plan, work
from tests.captioning.bulk.conftest import contents
from tests.captioning.bulk.kills import kill_before, use_late_store
from tests.captioning.tar_files import write_tar
from tests.processes import Processes


@pytest.fixture
def memory():
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        yield Path(name)


@pytest.fixture
def begin(checkpoint, photos, itm_checkpoint, tmp_path):
    """Return a function that starts the program in processes, which keep each batch."""
    (photos / "bad.png").write_bytes(b"no image")
    write_tar(tmp_path / "a.tar", sorted(photos.glob("scene*.png"))[:5])

    def start(out, processes=1, hook=None):
        def hooks(rank):
            use_late_store()
            work.KEEP_S, plan.TRIES, work.TRIES = 0, 1000, 1000
            if hook is not None:
                hook(rank)

        folder = out.rpartition("/")[0]
        given = [checkpoint, photos, tmp_path / "a.tar", "--out", out, "--device", "cpu"]
        given += ["--filter", "itm>0.5", "--itm_model", itm_checkpoint, "--shard_size", 3]
        given += ["--write-shards", f"{folder}/tars", "eval_batch_size=2", "num_workers=0"]
        given += ["--parquet", f"{folder}/a.parquet"] if find_spec("pyarrow") else []
        log = tmp_path / f"log{os.urandom(4).hex()}"
        return Processes(caption.main, list(map(str, given)), log, processes, hooks)

    return start


# A plan whose process was killed before its header was written, and a file that was not renamed.
NOT_LISTED = r"captions\.jsonl\.parts/\w+/|.*\.new"


def listed(folder):
    """Return the bytes of each file by its name, without what a late listing has hidden."""
    found = {n: data for n, data in contents(folder).items() if not re.match(NOT_LISTED, n)}
    marker = json.loads(found.pop("captions.jsonl.done"))
    marker["settings"].pop("write_shards")
    return {**found, "marker": marker}


def wait(run):
    """Return the exit codes. As under torchrun, when one process dies, all end."""
    while not run.ended() and all(process.exitcode in (None, 0) for process in run.ranks):
        run.ranks[0].join(0.02)
    if any(process.exitcode not in (None, 0) for process in run.ranks):
        run.send(signal.SIGKILL)
    return run.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.parametrize("where", ["disk", "store"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_before_any_operation_it_writes_the_same_files(begin, memory, seed, where, kills):
    """In one to three processes, with captions, failures, dropped captions and tars."""
    scheme = "late://" if where == "store" else "/"
    run = begin(f"{scheme}{str(memory)[1:]}/whole/captions.jsonl")
    assert run.wait() == [0], run.said()
    expected = listed(memory / "whole")
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
            assert listed(folder) == expected, run.said()
            shutil.rmtree(folder)
            folder = None if killed < kills else folder
    print(f"{killed} kills")


def test_a_unit_that_ends_its_process_three_times_is_set_aside(run, start, photos, failed):
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
    assert process.wait() == [0] and "done 8" in process.said(), process.said()
    assert len(failed()) == 2 and deadly.name in failed()
    assert all("set aside: 3 processes ended while" in reason for reason in failed().values())
    lines, _ = run(photos, "--retry-failed", *map(str, flags))
    assert len(lines) == 10
