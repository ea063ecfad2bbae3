"""Files that are written whole or not at all."""

import os
from unittest.mock import Mock

import pytest

from captioning.files import writing
from captioning.runtime.errors import UserError


def test_a_file_appears_when_the_block_has_ended_well(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with writing.atomic_write(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    with pytest.raises(ZeroDivisionError), writing.atomic_write(path) as file:
        file.write(b"half")
        1 / 0  # noqa: B018
    assert path.read_bytes() == b"after" and list(tmp_path.iterdir()) == [path]


def test_a_failed_write_is_one_line_and_leaves_nothing_behind(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory"):
        writing.write_json({}, tmp_path)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "replace", Mock(side_effect=full))
    with pytest.raises(UserError, match=r"cannot write .*x.txt: No space left on device"):
        writing.write_text("new", tmp_path / "x.txt")
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_on_disk_before_its_name_is_and_then_the_name(tmp_path, monkeypatch):
    path, happened = tmp_path / "file", []
    replace = os.replace

    def note_sync(descriptor):
        happened.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")

    def note_replace(*names):
        happened.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    with writing.atomic_write(path) as file:
        file.write(b"x")
    assert happened == ["file", "name", "folder"]
