"""Captions in other people's formats, read by other people's programs; and out of Parquet."""

import json
import shutil
import subprocess
from importlib.util import find_spec

import pytest

from captioning.data.annotations import read_annotations

pytest.importorskip("pyarrow", reason="pyarrow writes Parquet")

import pyarrow as pa
from pyarrow import parquet


def by_exiftool(path):
    found = subprocess.check_output(["exiftool", "-j", "-XMP:all", str(path)])
    return json.loads(found)[0]


@pytest.mark.skipif(not shutil.which("exiftool"), reason="exiftool reads XMP")
def test_exiftool_reads_sidecars_and_what_was_there_stays(run, photos):
    first, second, third, *_ = sorted(photos.glob("*.png"))
    for path, tag in ((first, "-XMP-xmp:Rating=4"), (second, "-XMP-dc:Description-fr=un disque")):
        subprocess.check_call(["exiftool", "-q", tag, str(path.with_suffix(".xmp"))])
    lines, _ = run(photos, "--sidecar", ".xmp", "--prefix", "<b> & \x07'c' ")
    captions = {line["image"]: line["caption"].replace("\x07", "") for line in lines}
    assert str(second) not in captions  # another program has described it
    found = by_exiftool(first.with_suffix(".xmp"))
    assert (found["Rating"], found["Description"]) == (4, captions[str(first)])
    assert "<xmp:Rating>4<" in first.with_suffix(".xmp").read_text()
    assert by_exiftool(third.with_suffix(".xmp"))["Description"] == captions[str(third)]
    lines, _ = run(photos, "--sidecar", ".xmp", "--existing", "overwrite")
    found = by_exiftool(second.with_suffix(".xmp"))
    assert found["Description-fr"] == "un disque"
    assert found["Description"] == lines[1]["caption"]


def test_metadata_is_read_by_datasets_and_parquet_has_the_lines(run, photos, tmp_path, monkeypatch):
    """Also when nothing is left to caption."""
    monkeypatch.setattr("captioning.bulk.outputs.ROWS", 3)
    table, metadata = tmp_path / "data" / "train.parquet", photos / "metadata.jsonl"
    run(photos, "--num_return", "2")
    lines, _ = run(photos, "--parquet", str(table), "--metadata", str(metadata))
    rows = parquet.read_table(table).to_pylist()
    assert len(rows) == len(lines) == 10
    for row, line in zip(rows, lines):
        assert all(row[key] == line[key] for key in ("image", "caption", "captions", "score"))
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(
        "imagefolder", data_dir=str(photos), cache_dir=str(tmp_path / "cache"), split="train"
    )
    loaded = loaded.cast_column("image", datasets.Image(decode=False))
    found = {row["image"]["path"]: row["text"] for row in loaded}
    assert found == {line["image"]: line["caption"] for line in lines}
    samples = read_annotations(tmp_path / "out" / "captions.jsonl")  # to train on
    assert [list(sample.captions) for sample in samples] == [line["captions"] for line in lines]


@pytest.mark.skipif(not find_spec("datasets"), reason="the datasets library reads Parquet")
def test_captions_of_parquet_are_those_of_the_files(run, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = sorted(photos.glob("*.png"))
    rows = [{"image": p.read_bytes(), "id": p.name} for p in paths]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4)
    batches = ["eval_batch_size=3"]
    of_files, _ = run(photos, "--no-recursive", *batches, folder="files")
    tars = ["--write-shards", str(tmp_path / "tars")]
    of_disk, _ = run(tmp_path / "a.parquet", *batches, *tars, folder="disk")
    assert [line["caption"] for line in of_disk] == [line["caption"] for line in of_files]
    names = [f"{tmp_path}/a.parquet/{number}" for number in range(len(paths))]
    assert [line["image"] for line in of_disk] == names
    assert [line["image_id"] for line in of_disk] == [path.name for path in paths]
    webdataset = pytest.importorskip("webdataset", reason="it reads the tars")
    tar = list(webdataset.WebDataset(str(tmp_path / "tars" / "00000.tar"), shardshuffle=False))
    assert [sample["png"] for sample in tar] == [path.read_bytes() for path in paths]
    assert json.loads(tar[3]["json"])["image"] == of_disk[3]["image"]
