"""Runs in an object store resume on another machine as runs on disk do."""

import signal

import pytest

from captioning.files import stores
from captioning.training.output_folder import WRITER, working_folder
from tests.captioning.object_store import FAULTS, quick_retries, stamps
from tests.runs import difference, stop_at

ADDRESS = "s3://bucket/within/run"


@pytest.fixture
def train(run, s3, tmp_path, monkeypatch):
    """Return a function that trains into the store, with a cache for each machine's name.

    It returns the output and the working folder.
    """

    def call(machine, *arguments, hook=quick_retries, **named):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        said = run("--output_dir", ADDRESS, *arguments, hook=hook, **named)
        return said, working_folder(ADDRESS)

    return call


def stop(*given):
    """A hook: the run gets a signal within a step, and retries requests without long pauses."""
    return lambda rank: [do(rank) for do in (quick_retries, stop_at(*given))]


def files(folder):
    """The names of a run's files, those of TensorBoard by their folder."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {"tensorboard" if name.startswith("tensorboard/") else name for name in names} - {WRITER}


def assert_stored(folder):
    """The store has the files of a working folder, and no other."""
    there = {name.partition("tensorboard/")[0] or "tensorboard" for name in stamps(ADDRESS)}
    names = files(folder)
    assert there == names | {WRITER}
    for name in names - {"tensorboard"}:
        assert stores.read_bytes(f"{ADDRESS}/{name}") == (folder / name).read_bytes(), name


def test_a_run_goes_on_elsewhere_to_the_bit_whatever_fails(s3, train, finished):
    whole = finished("max_epoch=1", processes=1)
    s3.faults += FAULTS * 3
    said, folder = train("one", "max_epoch=1", hook=stop(2))
    assert s3.faults == [] and f"{ADDRESS} has its working copy in {folder}" in said
    assert_stored(folder)
    said, _ = train("two", "max_epoch=1", hook=stop(7, signal.SIGKILL), code=-9)
    assert f"resuming from {ADDRESS}/checkpoint_00_step00000002.pth" in said
    said, folder = train("three", "max_epoch=1")
    assert f"resuming from {ADDRESS}/checkpoint_00_step00000006.pth" in said
    assert difference(whole, folder) is None and files(folder) == files(whole)
    assert_stored(folder)
    # The first machine was left with less, all of which the store has had.
    said, folder = train("one", "max_epoch=1")
    assert "has finished all of its 1 epochs" in said and difference(whole, folder) is None


@pytest.mark.slow
def test_another_machine_scores_a_run_of_two_processes(s3, train):
    train("one", "batch_size=4", "max_epoch=1", processes=2)
    said, folder = train("two", "max_epoch=1", "--evaluate")
    assert f"captions and scores are in {ADDRESS}/result" in said
    assert_stored(folder)
    assert "result/val/metrics.json" in files(folder)
