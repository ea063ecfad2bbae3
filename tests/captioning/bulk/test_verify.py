"""Gaps and damage are found and repaired; parquet; memory."""

import os

import pyarrow.parquet
import pytest

from captioning.bulk.model import CheckpointModel
from captioning.data import read_annotations
from tests.captioning.bulk.conftest import read_lines


def test_damage_is_reported_and_repaired(run, photos, tmp_path):
    (photos / "text.jpg").write_text("no image")
    whole, _ = run(photos, "--sidecar")
    out = tmp_path / "out" / "captions.jsonl"
    texts = out.read_text().splitlines()
    texts[3] = texts[3][:40]  # torn
    texts[5] = texts[4]  # repeated, and one is missing
    out.write_text("\n".join(texts) + "\n")
    sidecars = sorted(photos.glob("*.txt"))
    sidecars[0].unlink()
    before = {path: path.read_text() for path in sidecars[1:]}
    _, log = run(photos, "--sidecar", code=2)
    assert "1 lines are damaged, 1 repeat an image: --verify repairs the file" in log
    for path in sidecars[3:6]:  # otherwise they count as captions
        path.unlink()
    lines, log = run(photos, "--sidecar", "--verify")
    assert "verify: 8 have a caption, 2 have none, 1 failed before; 1 damaged lines" in log
    assert "1 repeated, 2 sidecars were missing" in log and "done 2 (" in log
    assert sorted(line["image"] for line in lines) == [line["image"] for line in whole]
    by_image = {line["image"]: line for line in whole}
    assert all(line == by_image[line["image"]] for line in lines)
    assert {path: path.read_text() for path in sidecars[1:]} == before
    _, log = run(photos, "--sidecar", "--verify")
    assert "verify: 10 have a caption, 0 have none, 1 failed before; 0 damaged" in log


def test_captions_of_another_checkpoint_or_of_other_settings_or_weights_are_reported(
    run, photos, tmp_path, checkpoint
):
    def reported(*flags):
        log = run(photos, *flags)[1]
        return [line for line in log.splitlines() if "which stay; --existing overwrite" in line]

    usual = ["--max_length", "8"]
    lines, _ = run(photos, *usual)
    [line] = reported("--num_beams", "1", "--max_length", "9")
    assert "has captions of another max_length, another num_beams, which stay" in line
    assert read_lines(tmp_path / "out/captions.jsonl") == lines
    assert reported(*usual, "--num_beams", "2") == []
    out = tmp_path / "out" / "captions.jsonl"
    os.utime(out, (0, checkpoint.stat().st_mtime - 1))
    [line] = reported(*usual)
    assert f"has captions of earlier weights of {checkpoint}, which stay" in line
    assert reported(*usual, "--existing", "overwrite") == []
    out.write_text(out.read_text().replace(lines[0]["checkpoint"], "old.pth"))
    [line] = reported(*usual)
    assert "has captions of old.pth, which stay" in line


def test_parquet_holds_what_the_json_lines_hold(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("captioning.bulk.exports.ROWS", 3)
    path = tmp_path / "captions.parquet"
    (photos.parent / "list.csv").write_text(
        "image,id\n" + "".join(f"{p},{n}\n" for n, p in enumerate(sorted(photos.rglob("*.png"))))
    )
    lines, _ = run(photos.parent / "list.csv", "--parquet", str(path), "--num_return", "2")
    samples = read_annotations(tmp_path / "out" / "captions.jsonl")  # to train on
    assert [list(s.captions) for s in samples] == [line["captions"] for line in lines]
    table = pyarrow.parquet.read_table(path).to_pylist()
    assert len(table) == 10
    for number, (row, line) in enumerate(zip(table, lines)):
        assert row["image_id"] == line["image_id"] == str(number)
        assert all(row[key] == line[key] for key in ("image", "caption", "captions", "score"))
    run(photos.parent / "list.csv", "--parquet", str(path))  # nothing left to caption
    assert pyarrow.parquet.read_table(path).num_rows == 10


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_stays_flat(run, photos, tmp_path, monkeypatch):
    """1,500 more images or captions in memory would take more than 20 MB."""
    names = sorted(photos.rglob("*.png"))
    many = tmp_path / "many"
    many.mkdir()
    for number in range(2000):
        os.link(names[number % len(names)], many / f"{number:04d}.png")
    sizes = []
    lines = CheckpointModel.lines

    def measured(self, batch, after, job):
        sizes.append(resident())
        return lines(self, batch, after, job)

    monkeypatch.setattr(CheckpointModel, "lines", measured)
    run(many, "--num_beams", "1", "--max_length", "8", "--batch_size", "50")
    assert len(sizes) >= 40
    assert max(sizes[10:]) - sizes[10] < 8e6
