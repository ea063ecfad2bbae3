"""Files that a user names: read, or refused in one line that names them."""

import os

import pytest

from captioning.files.reading import parse_json, read_json, read_text
from captioning.files.writing import write_json, write_text
from captioning.runtime.errors import UserError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\xff\xfe[", "not UTF-8 text at byte 0"),
        (b'{"a":\n 1,,}', "not valid JSON at line 2"),
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


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    write_text("old", tmp_path / "x.txt")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=r"cannot write .*x.txt: No space left on device"):
        write_text("new", tmp_path / "x.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]
    assert (tmp_path / "x.txt").read_text() == "old"


def test_what_is_not_wanted_is_left_out_of_every_object(tmp_path):
    write_json([{"a": 1, "b": {"c": [2], "a": {}}}, {"d": 3}], tmp_path / "some.json")
    kept = read_json(tmp_path / "some.json", without={"a", "c"})
    assert kept == [{"b": {}}, {"d": 3}]
    (tmp_path / "twice.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(UserError, match="occurs twice"):
        read_json(tmp_path / "twice.json", without={"a"})
