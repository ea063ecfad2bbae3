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
from captioning.training.log import LOG
from captioning.training.output_folder import OutputFolder
from captioning.training.selection import SELECTED
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
    return checkpoints.read_newest(output.folder).content["epoch"]


def train(output, at):
    """Write what a run of three epochs writes, in its order. at: gets what is being uploaded."""
    folder, lines = output.folder, []
    for epoch in range(3):
        write_text("\n".join([*lines, f"trained {epoch}"]), folder / LOG)
        save(folder, epoch)
        at.append((epoch, "saved"))
        output.upload()
        write_json({"of": epoch}, folder / f"result/{epoch}.json")
        lines.append(f"trained {epoch}\nscored {epoch}")
        write_text("\n".join(lines), folder / LOG)
        checkpoints.keep_as_best(folder, epoch)
        write_json({"epoch": epoch}, folder / SELECTED)
        at.append((epoch, "scored"))
        output.upload()


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

    for count in itertools.count():
        if s3.files.exists("bucket/run"):
            s3.files.rm("bucket/run", recursive=True)
        output, left = on(f"one{count}"), count
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            for name in ("upload", "remove"):
                patch.setattr(stores, name, watched(getattr(stores, name)))
            train(output, at := [])
        folder, (epoch, state) = on(f"two{count}").folder, at[-1]  # what was being uploaded
        found = checkpoints.read_newest(folder)
        if found is None:
            assert (epoch, state) == (0, "saved")
            continue
        saved, lines = found.content["epoch"], (folder / LOG).read_text().splitlines()
        assert saved in ((epoch, epoch - 1) if state == "saved" else (epoch,))
        assert found.log_lines == [] and found.content["model"]["w"].tolist() == [saved] * 9
        # The log is that of the checkpoint or later, and has no scores that are not there.
        assert [f"trained {n}" in lines for n in range(saved + 1)] == [True] * (saved + 1)
        assert [f"scored {n}" in lines for n in range(saved)] == [True] * saved
        for scored in (n for n in range(3) if f"scored {n}" in lines):
            assert (folder / f"result/{scored}.json").exists()
        if (folder / SELECTED).exists():  # it must not name an epoch that is not best yet
            best = checkpoints.read(checkpoints.best(folder))["epoch"]
            assert read_json(folder / SELECTED)["epoch"] <= best and best in (epoch, epoch - 1)
        if left >= 0:
            break
    assert count == 3 * 6 + 1  # files of an epoch, what is removed
    names = {"writer.json", LOG, SELECTED, "checkpoint_01.pth", "checkpoint_02.pth"}
    names |= {checkpoints.BEST, *(f"result/{epoch}.json" for epoch in range(3))}
    assert set(stamps(ADDRESS)) == names


def test_a_run_has_one_writer_and_an_earlier_state_is_not_lost(s3, on, tmp_path, monkeypatch):
    first = uploaded(on("first"), 0)
    with monkeypatch.context() as patch:  # a fetch that is killed is done again
        patch.setattr(OutputFolder, "_write_record", lambda _: (_ for _ in ()).throw(Killed))
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
    # A folder without files of its own is replaced, and nothing is copied again.
    again = on("second")
    assert newest(again) == 1
    s3.requests.clear()
    again.upload()
    assert not s3.requests
