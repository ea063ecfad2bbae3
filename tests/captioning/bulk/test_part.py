"""The journal of a shard after a power cut."""

import pytest

from captioning.bulk.shards import Part


@pytest.mark.parametrize("torn", [1, 10, 40])
def test_a_torn_line_is_cut_off(tmp_path, torn):
    part = Part(tmp_path, 3)
    part.add([{"image": "a"}, {"image": "b"}])
    whole = part.journal.read_bytes()
    part.add([{"image": "c"}, {"image": "d"}])
    part.journal.write_bytes(part.journal.read_bytes()[:-torn])
    again = Part(tmp_path, 3).recover()
    assert [line["image"] for line in again.lines] == ["a", "b"]
    assert part.journal.read_bytes() == whole
    again.add([{"image": "c"}])
    assert [line["image"] for line in Part(tmp_path, 3).recover().lines] == ["a", "b", "c"]


def test_lines_after_a_damaged_one_are_ignored(tmp_path):
    part = Part(tmp_path, 0)
    for image in "abc":
        part.add([{"image": image}])
    lines = part.journal.read_bytes().splitlines(keepends=True)
    part.journal.write_bytes(lines[0] + b"\0" * len(lines[1][:-1]) + b"\n" + lines[2])
    assert [line["image"] for line in Part(tmp_path, 0).recover().lines] == ["a"]
