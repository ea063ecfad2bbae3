"""What cannot be is one line, said before a captioner is loaded."""

import os
import shutil

import pytest
from filelock import FileLock

from captioning import caption

REFUSED = [
    (["--out", "{out}.json"], "has to be a file that ends in .jsonl"),
    (["--out", "{photos}/scene_000000.png/a.jsonl"], "cannot write"),
    (["--parquet", "{photos}"], "--parquet is"),
    (["--write-shards", "{photos}/scene_000000.png"], "cannot write"),
    (["--root", "{photos}"], "--root is for a list"),
    (["--glob", "*.gif"], "found no images"),
    (["--sidecar"], "would both have the sidecar"),
    (["{out}.jpg"], "no such photo, folder or list"),
    (["{out}{{1..3}}.tar"], "3 of 3 tars are missing"),
]


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_what_cannot_be_is_one_line_before_the_captioner_is_loaded(
    photos, tmp_path, capsys, no_captioner, flags, reason
):
    shutil.copy(photos / "scene_000000.png", photos / "scene_000000.jpg")
    out = tmp_path / "captions.jsonl"
    flags = [flag.format(out=out, photos=photos) for flag in flags]
    source = [] if flags[0].startswith(str(out)) else [str(photos)]
    assert caption.main(["x.pth", *source, "--out", str(out), "--device", "cpu", *flags]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("error: ") and reason in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_sidecars_that_cannot_be_written(run, photos, monkeypatch, no_captioner):
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(photos / "within"))
    _, said = run(photos, "--sidecar", code=2)
    assert "within, where --sidecar puts captions" in said


def test_two_programs_do_not_write_one_file(run, photos, tmp_path, no_captioner):
    (tmp_path / "out" / "captions.jsonl.parts").mkdir(parents=True)
    with FileLock(str(tmp_path / "out" / "captions.jsonl.parts" / "lock")):
        _, said = run(photos, code=2)
    assert "another program is writing it" in said


def test_settings_that_do_not_go_together(run, photos, tmp_path):
    _, said = run(photos, "--num_return", "3", code=2)
    assert "num_return is 3 with num_beams 2" in said
    _, said = run(photos, "--max_length", "3", code=2)
    assert "min_length is 5, above max_length, 3" in said
    assert not list((tmp_path / "out").iterdir())  # nothing is left that would be another run
    lines, _ = run(photos)
    assert len(lines) == 10
