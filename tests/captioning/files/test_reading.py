"""Files that a user names: read, or refused in one line that names them."""

import pytest

from captioning.files.reading import read_json, read_text
from captioning.files.writing import write_json
from captioning.runtime.errors import UserError


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_text(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot be read"):
        read_text(tmp_path)


def test_what_is_not_wanted_is_left_out_of_every_object(tmp_path):
    write_json([{"a": 1, "b": {"c": [2], "a": {}}}, {"d": 3}], tmp_path / "some.json")
    kept = read_json(tmp_path / "some.json", without={"a", "c"})
    assert kept == [{"b": {}}, {"d": 3}]
    (tmp_path / "twice.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(UserError, match="occurs twice"):
        read_json(tmp_path / "twice.json", without={"a"})
