"""Checkpoints of a run: complete or absent, verified, the oldest removed."""

import io
import os
import random
import resource
import shutil
import signal
import zipfile
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from tests.programs import unchanged


def content(epoch, **more):
    weights = {"w": torch.full((3,), float(epoch))}
    return {"model": weights, "optimizer": {}, "config": {}, "epoch": epoch, **more}


def save(folder, epoch):
    checkpoints.save(content(epoch), checkpoints.epoch_path(folder, epoch))


def save_step(folder, epoch, step):
    checkpoints.save(content(epoch, within={}), checkpoints.step_path(folder, epoch, step))


def test_the_newest_readable_one_is_found_and_others_are_named_and_set_aside(tmp_path):
    assert checkpoints.read_newest(tmp_path) is None
    for epoch in (0, 9, 10, 100, 101):
        save(tmp_path, epoch)
    assert checkpoints.read_newest(tmp_path)[1]["epoch"] == 101
    cut, flipped = (checkpoints.epoch_path(tmp_path, epoch) for epoch in (101, 100))
    cut.write_bytes(cut.read_bytes()[:200])
    damaged = bytearray(flipped.read_bytes())
    damaged[damaged.index(b"\x00\x00\xc8B")] ^= 1  # a weight: the file loads as before
    flipped.write_bytes(damaged)
    (tmp_path / "checkpoint_best.pth").write_bytes(b"")
    path, newest, problems = checkpoints.read_newest(tmp_path)
    assert path == checkpoints.epoch_path(tmp_path, 10) and newest["epoch"] == 10
    assert "checkpoint_101.pth is damaged: File is not a zip file" in problems[0]
    line = f"skipping a checkpoint: {flipped} is damaged: its content differs from what was written"
    assert problems[1:] == [line]
    assert flipped.with_name("checkpoint_100.pth.bad").read_bytes() == damaged
    assert checkpoints.read_newest(tmp_path)[2] == []
    with pytest.raises(UserError, match="must be on a disk that all machines share"):
        checkpoints.read(tmp_path / "checkpoint_102.pth")


@pytest.mark.parametrize("link", [os.link, None])  # None: the disk has no hard links
def test_the_best_survives_the_removal_of_its_epoch(tmp_path, monkeypatch, link):
    monkeypatch.setattr(os, "link", link or (lambda *_: os.stat("/no/links")))
    for epoch in (0, 1):
        save(tmp_path, epoch)
        checkpoints.keep_as_best(tmp_path, epoch)
        checkpoints.epoch_path(tmp_path, epoch).unlink()
        assert torch.load(tmp_path / checkpoints.BEST)["epoch"] == epoch


def test_two_of_all_are_kept(tmp_path):
    for epoch in (0, 1, 2):
        save_step(tmp_path, epoch, 10 * epoch + 5)
        save(tmp_path, epoch)
    for step in (90, 100):
        save_step(tmp_path, 3, step)
    names = ["00_step00000005", "00", "01_step00000015", "01", "02_step00000025", "02"]
    names += ["03_step00000090", "03_step00000100"]
    saved = [path.stem.removeprefix("checkpoint_") for path in checkpoints.saved(tmp_path)]
    assert saved == names
    checkpoints.remove_oldest(tmp_path, keep=2)
    left = [f"checkpoint_{name}.pth" for name in ("01", "02", *names[-2:])]
    assert {path.name for path in tmp_path.iterdir()} == {*left}
    assert [path.name for path in checkpoints.epoch_checkpoints(tmp_path)] == left[:2]


def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing(tmp_path):
    """Nothing reads padding between records, and dates. The index is tested bit by bit."""
    path, written = tmp_path / "checkpoint_01.pth", content(1, config={"a": "b"})
    checkpoints.save(written, path)
    whole, weights = path.read_bytes(), written.pop("model")["w"]
    index, noticed = 8 * zipfile.ZipFile(path).start_dir, 0
    places = [*random.Random(0).sample(range(index), 300), *range(index, 8 * len(whole), 3)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            checkpoints.check_whole(path)
            found = checkpoints.read(path)
        except UserError:
            noticed += 1
            continue
        assert torch.equal(found.pop("model")["w"], weights) and found == written, place
    assert noticed > len(places) / 2


def die_at(count):
    """Let this process kill itself before its file operation of this number, from 0."""
    operations, complete = iter(range(count + 1)), checkpoints.atomic_write

    def counted(operation):
        def call(*arguments, **settings):
            if next(operations) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **settings)

        return call

    @contextmanager
    def atomic_write(path):
        with complete(path) as file:
            yield SimpleNamespace(write=counted(file.write), flush=file.flush)

    for name in ("open", "fsync", "replace", "unlink", "link"):
        setattr(os, name, counted(getattr(os, name)))
    checkpoints.atomic_write = atomic_write


def test_killed_before_any_file_operation_there_is_a_verified_checkpoint(tmp_path):
    """Two after a complete save. Leftovers are removed when the run is resumed."""
    source = tmp_path / "source"
    source.mkdir()
    for epoch in (0, 1):
        save(source, epoch)
    for count in range(100):
        folder = shutil.copytree(source, tmp_path / str(count))
        child = os.fork()
        if child == 0:
            die_at(count)
            save_step(folder, 2, 25)
            checkpoints.remove_oldest(folder, 2)
            checkpoints.keep_as_best(folder, 1)
            os._exit(0)
        is_killed = os.waitpid(child, 0)[1] == signal.SIGKILL
        checkpoints.remove_leftovers(folder)
        _, newest, problems = checkpoints.read_newest(folder)
        assert not problems and newest["epoch"] in (1, 2)
        assert torch.equal(newest["model"]["w"], torch.full((3,), float(newest["epoch"])))
        left = {file.name for file in folder.iterdir()} - {checkpoints.BEST}
        assert len(left) == len(checkpoints.saved(folder)) >= 2, left
        if not is_killed:
            break
    assert not is_killed and count > 15 and newest["epoch"] == 2


def test_a_file_that_the_system_does_not_let_grow_is_one_line_and_no_file_changes(tmp_path):
    save(tmp_path, 0)
    line = f"cannot write {tmp_path / 'checkpoint_01.pth'}: File too large"
    with unchanged(tmp_path):
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
            large = content(1, optimizer={"m": torch.ones(20_000)})
            try:
                checkpoints.save(large, checkpoints.epoch_path(tmp_path, 1))
            except UserError as error:
                os._exit(0 if str(error) == line else 3)
            os._exit(4)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ctrl_c_within_a_save_is_no_error_of_the_disk(tmp_path, monkeypatch, count):
    """torch's writer raises a RuntimeError after it."""
    save(tmp_path, 0)
    writes = iter(range(1, 100))

    class Interrupted(io.BytesIO):
        def write(self, data):
            if next(writes) == count:
                raise KeyboardInterrupt
            return super().write(data)

    monkeypatch.setattr(checkpoints, "atomic_write", lambda _: Interrupted())
    with unchanged(tmp_path), pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1)
