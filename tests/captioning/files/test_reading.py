"""Files that a user names: read, or refused in one line that names them."""

import json
import os

import pytest

from captioning.files.reading import parse_json, read_text
from captioning.files.writing import write_json, write_text
from captioning.runtime.errors import UserError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\xff\xfe[", "not UTF-8 text at byte 0"),
        (b'{"a":\n 1,,}', "not valid JSON at line 2"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, content, message):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        parse_json(read_text(path), path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_text(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot be read"):
        read_text(tmp_path)


def test_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert parse_json(read_text(tmp_path / "bom.json"), tmp_path) == [1]


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "x.json"
    write_json({"a": "é"}, path)
    with pytest.raises(TypeError):
        write_json({"a": object()}, path)
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "é"}
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    write_text("old", tmp_path / "x.txt")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=r"cannot write .*x.txt: No space left on device"):
        write_text("new", tmp_path / "x.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]
    assert (tmp_path / "x.txt").read_text() == "old"
