"""Two captions files in one folder: neither run removes lines or files of the other."""

import os
import time

import pytest

from captioning.files.writing import atomic_write, locked, write_lines
from tests.captioning.bulk.conftest import read_lines


def test_partial_files_of_another_output_stay(run, photos, tmp_path):
    """Also if its name begins like that of this one."""
    out = tmp_path / "out"
    out.mkdir()
    (photos / "bad.png").write_text("no image")
    with (
        atomic_write(out / "captions.jsonl.b.jsonl") as one,
        atomic_write(out / "failed.jsonl") as two,
    ):
        one.write(b"{}\n")
        two.write(b'{"image": "x", "error": "y", "out": "captions.jsonl.b.jsonl"}\n')
        run(photos)
    assert (out / "captions.jsonl.b.jsonl").read_bytes() == b"{}\n"
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("there", [False, True])
def test_failures_that_another_run_writes_meanwhile_stay(start, photos, tmp_path, there):
    (photos / "bad.png").write_text("no image")
    failed, out = tmp_path / "out/failed.jsonl", tmp_path / "out/captions.jsonl"
    failed.parent.mkdir()
    other = {"image": "x.jpg", "error": "no such file", "out": "other.jsonl"}
    if there:
        write_lines(failed, [other])

    def begin_when_it_is_held(rank):
        while not (tmp_path / "held").exists():
            time.sleep(0.01)

    process = start(hook=begin_when_it_is_held)
    with locked(failed):
        (tmp_path / "held").touch()
        until = time.monotonic() + 60
        while not out.exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)
        assert not process.ended()
        if there:
            write_lines(failed, [other, {**other, "image": "y.jpg"}])
        else:
            failed.unlink()
    assert process.wait() == [0]
    found = [os.path.basename(line["image"]) for line in read_lines(failed)]
    assert found == (["x.jpg", "y.jpg"] if there else []) + ["bad.png"]
