"""The benchmark of one photo: that what is timed ends in a caption, of the same weights."""

import json

import pytest

from benchmarks import one_photo


def test_the_smallest_run_has_all_rows_and_phases(tmp_path, repository):
    one_photo.main(["--quick", "--output", str(tmp_path), "--beside", str(repository)])
    (row,) = json.loads((tmp_path / "one_photo.json").read_text())["rows"]
    theirs = ["transformers"] if one_photo.has_blip() else []
    assert list(row["contenders"]) == ["ours", "beside", *theirs]
    assert [word.split()[0] for word in row["note"].split(", ")] == list(one_photo.PHASES)


@pytest.mark.skipif(not one_photo.has_blip(), reason="this transformers has no BLIP")
def test_both_programs_say_the_same(tmp_path, repository):
    one_photo.make_files(tmp_path, tiny=True)
    one_photo.run(one_photo.ours(repository, tmp_path))
    caption = json.loads((tmp_path / "captions.jsonl").read_text())["caption"]
    theirs = one_photo.run(one_photo.theirs(tmp_path)).strip()
    assert len(caption.split()) > 5 and theirs == f"a picture of {caption}"
