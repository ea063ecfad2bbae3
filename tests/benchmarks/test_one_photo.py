"""The benchmark of one photo: that what is timed ends in a caption, of the same weights."""

import json
from pathlib import Path

import pytest

from benchmarks import one_photo


@pytest.fixture(scope="module")
def measured(tmp_path_factory, repository):
    """Return the row of the smallest run, and what each program wrote or else printed."""
    found, run = [], one_photo.run

    def heard(command):
        printed = run(command)
        if "--out" in command:
            out = Path(command[command.index("--out") + 1])
            printed = json.loads(out.read_text())["caption"]
        found.append(printed)
        return printed

    folder = tmp_path_factory.mktemp("one_photo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_photo, "run", heard)
        one_photo.main(["--quick", "--output", str(folder), "--beside", str(repository)])
    (row,) = json.loads((folder / "one_photo.json").read_text())["rows"]
    return row, found


def test_the_smallest_run_has_all_rows_and_phases(measured):
    row, _ = measured
    theirs = ["transformers"] if one_photo.has_blip() else []
    assert list(row["contenders"]) == ["ours", "beside", *theirs]
    assert [word.split()[0] for word in row["note"].split(", ")] == list(one_photo.PHASES)


@pytest.mark.skipif(not one_photo.has_blip(), reason="this transformers has no BLIP")
def test_both_programs_say_the_same(measured):
    _, (ours, beside, theirs, _) = measured
    assert len(ours.split()) > 5 and ours == beside
    assert theirs.strip() == f"a picture of {ours}"
