"""A run's checkpoints: whole or not there, newest found, oldest removed."""

import os

import pytest
import torch

from captioning import checkpointing
from captioning.errors import UserError


def content(epoch):
    return {"model": {"w": torch.full((3,), float(epoch))}, "optimizer": {}, "config": {}} | {
        "epoch": epoch
    }


def save(folder, epoch):
    checkpointing.save(content(epoch), checkpointing.epoch_path(folder, epoch))


def test_the_newest_readable_one_is_found_and_others_named(tmp_path):
    assert checkpointing.read_newest(tmp_path) is None
    for epoch in (0, 9, 10, 100):
        save(tmp_path, epoch)
    assert checkpointing.read_newest(tmp_path)[1]["epoch"] == 100
    path = checkpointing.epoch_path(tmp_path, 100)
    path.write_bytes(path.read_bytes()[:200])
    (tmp_path / "checkpoint_best.pth").write_bytes(b"")
    path, newest, problems = checkpointing.read_newest(tmp_path)
    assert path == checkpointing.epoch_path(tmp_path, 10)
    assert newest["epoch"] == 10
    assert len(problems) == 1 and "checkpoint_100.pth cannot be read" in problems[0]


def test_no_readable_one_is_an_error(tmp_path):
    checkpointing.epoch_path(tmp_path, 0).write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"none of the checkpoints in .* can be read"):
        checkpointing.read_newest(tmp_path)


def test_a_machine_without_the_folder_says_so(tmp_path):
    with pytest.raises(UserError, match="must be on a disk that all machines share"):
        checkpointing.read(tmp_path / "checkpoint_00.pth")


def test_the_oldest_are_removed(tmp_path):
    for epoch in range(5):
        save(tmp_path, epoch)
    checkpointing.remove_oldest(tmp_path, keep=2)
    assert [path.stem for path in checkpointing.saved(tmp_path)] == [
        "checkpoint_03",
        "checkpoint_04",
    ]


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    save(tmp_path, 0)

    def fail(obj, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(UserError, match=r"cannot write .*checkpoint_00.pth: .*No space left"):
        save(tmp_path, 0)
    monkeypatch.undo()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint_00.pth", "checkpoint_00.json"}
    assert checkpointing.read_newest(tmp_path)[1]["epoch"] == 0


@pytest.mark.parametrize("links", [True, False])
def test_the_best_survives_the_removal_of_its_epoch(tmp_path, monkeypatch, links):
    if not links:

        def refuse(source, target):
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refuse)
    save(tmp_path, 0)
    checkpointing.keep_as_best(tmp_path, 0)
    save(tmp_path, 1)
    checkpointing.epoch_path(tmp_path, 0).unlink()
    best = torch.load(tmp_path / checkpointing.BEST)
    assert best["epoch"] == 0
    checkpointing.keep_as_best(tmp_path, 1)
    assert torch.load(tmp_path / checkpointing.BEST)["epoch"] == 1
