"""A run's folder in a store: a stop at any write leaves a run that can be resumed."""

import contextlib
import itertools

import pytest
import torch

from captioning.files import stores
from captioning.files.reading import read_json
from captioning.files.writing import write_json, write_text
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.training.output_folder import LOG, SELECTED, OutputFolder
from tests.captioning.object_store import stamps
from tests.programs import raises_line

ADDRESS = "s3://bucket/run"


class Killed(BaseException):
    pass


@pytest.fixture
def on(s3, tmp_path, monkeypatch):
    """Return a function that begins the output folder on a machine, given by name."""

    def machine(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        output = OutputFolder(ADDRESS)
        output.begin()
        return output

    return machine


def save(folder, epoch):
    content = {"model": {"w": torch.full((9,), float(epoch))}, "optimizer": {}, "config": {}}
    checkpoints.save({**content, "epoch": epoch}, checkpoints.epoch_path(folder, epoch))
    checkpoints.remove_oldest(folder, 2)


def uploaded(output, epoch):
    """Return the output folder, after an epoch whose checkpoint it has written to the store."""
    save(output.folder, epoch)
    output.upload()
    return output


def newest(output):
    return checkpoints.read_newest(output.folder)[1]["epoch"]


@pytest.mark.slow
def test_a_kill_before_any_write_leaves_a_run_that_goes_on(s3, on, monkeypatch):
    left = 0  # the number of writes before the kill

    def watched(call):
        def write(*arguments):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*arguments)

        return write

    # The writes of the second epoch are those of the third.
    for number in itertools.chain(range(7), itertools.count(13)):
        if s3.files.exists("bucket/run"):
            s3.files.rm("bucket/run", recursive=True)
        output, epoch, kept, left, lines = on(f"one{number}"), -1, "", number, []
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            for name in ("upload", "copy", "remove"):
                patch.setattr(stores, name, watched(getattr(stores, name)))
            for epoch in range(3):
                kept = "checkpoint"
                lines.append(f"trained {epoch}")
                write_text("\n".join(lines), output.folder / LOG)
                uploaded(output, epoch)
                kept, name = "best", f"result/val_epoch{epoch:02d}/metrics.json"
                write_json({"of": epoch}, output.folder / name)
                lines.append(f"scored {epoch}")
                write_text("\n".join(lines), output.folder / LOG)
                checkpoints.keep_as_best(output.folder, epoch)
                write_json({"epoch": epoch}, output.folder / SELECTED)
                output.upload()
        _check_what_is_there(on(f"two{number}").folder, epoch, kept)
        if left >= 0:
            break
    assert number == 3 * 6 + 1  # files of an epoch, what is removed
    assert set(stamps(ADDRESS)) == {
        *("writer.json", LOG, SELECTED, checkpoints.BEST),
        *(f"checkpoint_{epoch:02d}.pth" for epoch in (1, 2)),
        *(f"result/val_epoch{epoch:02d}/metrics.json" for epoch in range(3)),
    }


def _check_what_is_there(folder, epoch, kept):
    """epoch, kept: what was being written."""
    found = checkpoints.read_newest(folder)
    if found is None:
        assert epoch <= 0 and kept != "best"
        return
    _, content, problems = found
    assert content["epoch"] in ((epoch, epoch - 1) if kept == "checkpoint" else (epoch,))
    assert problems == [] and content["model"]["w"].tolist() == [content["epoch"]] * 9
    lines = (folder / LOG).read_text().splitlines()
    assert f"trained {content['epoch']}" in lines
    for scored in (n for n in range(3) if f"scored {n}" in lines):
        assert (folder / f"result/val_epoch{scored:02d}/metrics.json").exists()
    assert [f"scored {n}" in lines for n in range(content["epoch"])] == [True] * content["epoch"]
    for path in checkpoints.saved(folder):
        checkpoints.check_whole(path)
    best = checkpoints.best(folder)
    if content["epoch"] > 0:
        assert checkpoints.read(best)["epoch"] in (epoch, epoch - 1)
    if (folder / SELECTED).exists():  # it must not name an epoch that is not best yet
        assert read_json(folder / SELECTED)["epoch"] <= checkpoints.read(best)["epoch"]


def test_what_a_store_lacks_is_written_by_the_next_call(s3, on):
    output = on("one")
    save(output.folder, 0)
    s3.refused = "checkpoint_00.pth"
    with pytest.raises(UserError, match=r"not allowed.*nothing is lost.*the same command"):
        output.upload()
    s3.refused = None
    on("one").upload()
    s3.files.rm("bucket/run", recursive=True)
    on("one").upload()
    assert {"checkpoint_00.pth", "writer.json"} == set(stamps(ADDRESS))
    assert newest(on("two")) == newest(output) == 0


def test_a_run_has_one_writer_and_an_earlier_state_is_not_lost(s3, on, tmp_path, monkeypatch):
    first = uploaded(on("first"), 0)
    with monkeypatch.context() as patch:  # a fetch that is killed is done again
        patch.setattr(OutputFolder, "_become_writer", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            on("second")
    second = uploaded(on("second"), 1)
    there = stamps(ADDRESS)
    save(first.folder, 7)
    with raises_line(UserError, "another machine has continued this run", str(first.folder)):
        first.upload()
    with raises_line(UserError, "another machine has continued this run", "move it away"):
        on("first")
    assert stamps(ADDRESS) == there and newest(first) == 7
    second.upload()
    first.folder.rename(tmp_path / "away")
    assert newest(on("first")) == 1
    # A folder without files of its own is replaced.
    assert newest(on("second")) == 1


def test_a_run_of_an_earlier_version_goes_on_where_it_was(s3, on):
    folder = uploaded(on("one"), 0).folder
    for name in (str(folder / "writer.json"), f"{ADDRESS}/writer.json"):
        stores.put(b'{"token": "c0ffee"}', name)
    assert newest(uploaded(on("one"), 1)) == 1
    assert "checkpoint_01.pth" in stamps(ADDRESS)


def test_a_second_name_is_copied_by_the_store(s3, on, monkeypatch):
    output = uploaded(on("one"), 0)
    checkpoints.keep_as_best(output.folder, 0)
    calls, copy = [], stores.copy
    monkeypatch.setattr(stores, "copy", lambda *given: calls.append(given) or copy(*given))
    output.upload()
    epoch, best = f"{ADDRESS}/checkpoint_00.pth", f"{ADDRESS}/{checkpoints.BEST}"
    assert [given[:2] for given in calls] == [(epoch, best)]
    assert stores.read_bytes(best) == (output.folder / "checkpoint_00.pth").read_bytes()
    s3.requests.clear()
    output.upload()
    assert not s3.requests
