"""Data sets on the Hugging Face hub: read by huggingface_hub from a server on this machine."""

import pytest

pytest.importorskip("datasets", reason="the datasets library reads Parquet")
pytest.importorskip("pyarrow", reason="pyarrow writes Parquet")

import fsspec
import pyarrow as pa
from pyarrow import parquet

from captioning.data.annotations import read_annotations
from captioning.data.image import load_image
from captioning.files import stores, tables
from captioning.files.cache import local
from captioning.files.images import images_in
from captioning.runtime.errors import UserError
from tests.captioning.hub import serving
from tests.programs import raises_line

DATA = "hf://datasets/owner/birds"


@pytest.fixture(scope="module")
def photos(scenes, tmp_path_factory):
    """Return four photos. The hub has two in each of two Parquet files, and the last as a file."""
    folder = tmp_path_factory.mktemp("hub")
    photos, files = sorted((scenes / "images").glob("*.png"))[:4], {}
    for number in range(2):
        rows = [{"image": p.read_bytes(), "text": p.name} for p in photos[2 * number :][:2]]
        parquet.write_table(pa.Table.from_pylist(rows), folder / "part")
        files[f"data/train-{number}.parquet"] = (folder / "part").read_bytes()
    files["photos/a.png"] = photos[3].read_bytes()
    with serving(files) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setitem(fsspec.config.conf, "hf", {"endpoint": address})
        yield photos


@pytest.mark.parametrize("pattern", [f"{DATA}/data/train-*.parquet", f"{DATA}/**/*.parquet"])
def test_rows_of_its_parquet_are_images_with_their_addresses(photos, pattern):
    names, rows = zip(*tables.rows(pattern))
    assert names == tuple(f"{DATA}/data/train-{n}.parquet/{row}" for n in (0, 1) for row in (0, 1))
    assert [row["text"] for row in rows] == [photo.name for photo in photos]
    for name, photo in zip(names, photos):
        assert load_image(name).tobytes() == load_image(photo).tobytes()
    samples = read_annotations(local(pattern))  # as for training
    assert [sample.captions[0] for sample in samples] == [photo.name for photo in photos]
    assert load_image(samples[3].image).tobytes() == load_image(photos[3]).tobytes()


def test_its_photos_are_listed_and_read_and_what_it_lacks_is_one_line(photos):
    assert list(images_in(DATA)) == [f"{DATA}/photos/a.png"]
    assert stores.read_bytes(f"{DATA}/photos/a.png") == photos[3].read_bytes()
    for address in (f"{DATA}/data/test-*.parquet", "hf://datasets/owner/fish/a.parquet"):
        with raises_line(UserError, "no such file or bucket", start=address):
            list(tables.rows(address))
