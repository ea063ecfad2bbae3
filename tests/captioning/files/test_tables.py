"""Parquet and Arrow files with images inside, on disk and on a server that stands for the hub."""

import json
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("datasets", reason="the datasets library reads Parquet")
pytest.importorskip("pyarrow", reason="pyarrow writes Parquet")

import datasets
import fsspec
import pyarrow as pa
from pyarrow import parquet

from captioning.data.annotations import read_annotations
from captioning.data.caption_files import ids_by_name, read_predictions
from captioning.data.image import load_image
from captioning.files import stores, tables
from captioning.files.cache import local
from captioning.files.images import images_in
from captioning.metrics.image_files import find_images
from captioning.runtime.errors import UserError
from tests import servers
from tests.programs import raises_line


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def rows(scenes):
    """Return the training scenes as rows, with the bytes of their images."""
    samples = read_annotations(scenes / "scenes_train.json")
    return [{"image": (scenes / s.image).read_bytes(), "text": list(s.captions)} for s in samples]


def write(rows, path):
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)


def as_struct(rows):
    return [{**row, "image": {"bytes": row["image"], "path": None}} for row in rows]


def save(rows, path):
    features = datasets.Features(image=datasets.Image(), text=datasets.Value("string"))
    rows = [{**row, "text": row["text"][0]} for row in as_struct(rows)]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(path)


def split(rows, path):
    write(as_struct(rows[:7]), path.parent / "part-0.PARQUET")
    write(as_struct(rows[7:]), path.parent / "part-1.PARQUET")


WRITERS = {
    "bytes.parquet": write,
    "struct.parquet": lambda rows, path: write(as_struct(rows), path),
    "saved [1]": save,
    "part-*.PARQUET": split,
}


@pytest.mark.parametrize("name", WRITERS)
def test_images_and_captions_are_those_that_were_written(rows, scenes, tmp_path, name):
    WRITERS[name](rows, tmp_path / name)
    samples = read_annotations(tmp_path / name)
    expected = read_annotations(scenes / "scenes_train.json")
    count = 1 if name == "saved [1]" else None
    assert [s.captions for s in samples] == [s.captions[:count] for s in expected]
    images = find_images(tmp_path / name, tmp_path / name, [s.image_id for s in samples])
    assert [str(path) for path in images.values()] == [sample.image for sample in samples]
    for sample, original in zip(samples[::5], expected[::5]):
        pixels = np.asarray(Image.open(scenes / original.image).convert("RGB"))
        assert np.array_equal(np.asarray(load_image(sample.image)), pixels)


def test_captions_of_several_files_meet_their_references(rows, tmp_path):
    """Rows of two files have equal numbers; predictions may name the files in another way."""
    split(rows, tmp_path / "part-*.PARQUET")
    ids = ids_by_name(tmp_path / "part-*.PARQUET")
    samples = read_annotations(tmp_path / "part-*.PARQUET")
    for folder in (str(tmp_path), "data", "hf://datasets/owner/birds/data"):
        names = [sample.image.replace(str(tmp_path), folder) for sample in samples]
        lines = [{"image": name, "caption": str(n)} for n, name in enumerate(names)]
        expected = {sample.image_id: str(n) for n, sample in enumerate(samples)}
        (tmp_path / "a.json").write_text(json.dumps(lines))
        assert read_predictions(tmp_path / "a.json", ids) == expected


def test_what_cannot_be_read_is_named_in_one_line(rows, tmp_path):
    write([{"image": "a.jpg", "text": "x"}], tmp_path / "a.parquet")
    write([*rows[:1], {"image": None, "text": ["x"]}], tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:99])
    for name, message in {
        "a.parquet": "has no column image with image files, only image, text: rename",
        "c.parquet": "cannot be read",
        "d-*.parquet": "no such file",
    }.items():
        with raises_line(UserError, message, start=str(tmp_path / name)):
            read_annotations(tmp_path / name)
    for row, message in {1: "the row has no image", 2: "no such row: .* has 2"}.items():
        with pytest.raises(UserError, match=f"b.parquet/{row}: {message}"):
            load_image(f"{tmp_path}/b.parquet/{row}")


DATA = "hf://datasets/owner/birds"
API, FILE = "/api/datasets/owner/birds", "/datasets/owner/birds/resolve/main/"


@pytest.fixture(scope="module")
def on_hub(scenes, tmp_path_factory):
    """Return four photos. The hub has two in each of two Parquet files, and the last as a file."""
    folder = tmp_path_factory.mktemp("hub")
    photos, files = sorted((scenes / "images").glob("*.png"))[:4], {}
    for number in range(2):
        rows = [{"image": p.read_bytes(), "text": p.name} for p in photos[2 * number :][:2]]
        parquet.write_table(pa.Table.from_pylist(rows), folder / "part")
        files[f"data/train-{number}.parquet"] = (folder / "part").read_bytes()
    files["photos/a.png"] = photos[3].read_bytes()
    tree = [{"type": "directory", "path": path, "oid": "1" * 40} for path in ("data", "photos")]
    for name, data in files.items():
        tree.append({"type": "file", "path": name, "oid": name, "size": len(data)})

    def answer(path, headers, body):
        path, query = unquote(urlsplit(path).path), urlsplit(path).query.lower()
        if path.startswith(f"{API}/tree/main"):
            within = PurePosixPath(path[len(f"{API}/tree/main/") :])
            levels = 9 if "recursive=true" in query else 1
            listed = [e for e in tree if within in [*PurePosixPath(e["path"]).parents][:levels]]
            return 200, {}, json.dumps(listed).encode()
        if path.startswith(API):
            return 200, {}, json.dumps({"id": "owner/birds", "sha": "0" * 40}).encode()
        data = files.get(path.removeprefix(FILE))
        if data is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        return 200, {}, data

    with servers.serving(answer) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setitem(fsspec.config.conf, "hf", {"endpoint": server.url})
        yield photos


@pytest.mark.parametrize("pattern", [f"{DATA}/data/train-*.parquet", f"{DATA}/**/*.parquet"])
def test_rows_of_the_hubs_parquet_are_images_with_their_addresses(on_hub, pattern):
    names, rows = zip(*tables.rows(pattern))
    assert names == tuple(f"{DATA}/data/train-{n}.parquet/{row}" for n in (0, 1) for row in (0, 1))
    assert [row["text"] for row in rows] == [photo.name for photo in on_hub]
    for name, photo in zip(names, on_hub):
        assert load_image(name).tobytes() == load_image(photo).tobytes()
    samples = read_annotations(local(pattern))  # as for training
    assert [sample.captions[0] for sample in samples] == [photo.name for photo in on_hub]
    assert load_image(samples[3].image).tobytes() == load_image(on_hub[3]).tobytes()


def test_photos_of_the_hub_are_read_and_what_it_lacks_is_one_line(on_hub):
    assert list(images_in(DATA)) == [f"{DATA}/photos/a.png"]
    assert stores.read_bytes(f"{DATA}/photos/a.png") == on_hub[3].read_bytes()
    for address in (f"{DATA}/data/test-*.parquet", "hf://datasets/owner/fish/a.parquet"):
        with raises_line(UserError, "no such file or bucket", start=address):
            list(tables.rows(address))
