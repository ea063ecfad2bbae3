"""Images in an object store have the captions of the same files on disk."""

import itertools

import pytest

from captioning.bulk.request import Request
from captioning.files import stores
from tests.captioning.bulk.conftest import read_lines
from tests.captioning.object_store import FAULTS
from tests.captioning.tar_files import write_members
from tests.programs import one_error_line


@pytest.fixture
def stored(s3, photos):
    """Return the address of a folder of the photos and of other files."""
    for path in photos.rglob("*.png"):
        s3.files.put_file(str(path), f"bucket/photos/{path.relative_to(photos)}")
    for name in (".hidden/a.png", "notes.txt", "within/.b.png"):
        s3.files.pipe_file(f"bucket/photos/{name}", b"no photo")
    return "s3://bucket/photos"


def results(lines, before):
    return [(line["image"].removeprefix(before), line["caption"], line["score"]) for line in lines]


def test_a_folder_is_captioned_as_on_disk_whatever_fails(run, s3, photos, stored, tmp_path):
    on_disk, _ = run(photos, folder="disk")
    s3.faults += FAULTS * 3
    in_store, log = run(stored, "--num_workers", "2", "--write-shards", str(tmp_path / "tars"))
    assert s3.faults == [] and "done 10" in log
    assert results(in_store, stored) == results(on_disk, str(photos))
    assert "S3CR3T" not in log
    again, log = run(stored)
    assert again == in_store and "skipped 10" in log
    for path in tmp_path.rglob("out/*"):
        assert "S3CR3T" not in path.read_text()


def failures(tmp_path):
    path = tmp_path / "out/failed.jsonl"
    return read_lines(path) if path.exists() else []


@pytest.mark.parametrize("given", [pytest.param(0, marks=pytest.mark.slow), 6])
def test_a_store_that_returns_nothing_any_more_ends_the_run(run, s3, stored, tmp_path, given):
    """For example when credentials expire: no image is reported as failed."""
    undisturbed, _ = run(stored, folder="undisturbed")
    requests = itertools.count()
    s3.withheld = lambda path: next(requests) >= given
    _, log = run(stored, "--num_workers", "1", "--shard_size", "3", code=2)
    assert "run the same command again" in one_error_line(log, "not allowed: give credentials")
    assert failures(tmp_path) == []
    s3.withheld = lambda path: False
    lines, log = run(stored, "--num_workers", "1", "--shard_size", "3")
    assert lines == undisturbed and "failed 0" in log


def test_a_photo_that_a_store_refuses_fails_alone(run, s3, stored, tmp_path):
    name = sorted(name for name in s3.files.find("bucket/photos") if "scene_" in name)[4]
    s3.withheld = lambda path: path.endswith(name)
    lines, log = run(stored)
    assert len(lines) == 9 and "done 9" in log and "failed 1" in log
    (failed,) = failures(tmp_path)
    assert failed["image"] == f"s3://{name}" and "not allowed" in failed["error"]


def test_a_folder_is_listed_page_by_page(s3, stored, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "PAGE", 3)

    def names(**settings):
        images = Request(stored, tmp_path / "a.jsonl", **settings).images()
        return [item.image.removeprefix(f"{stored}/") for item in images]

    s3.requests.clear()
    found = names()
    assert len(found) == 10 and found == sorted(found)
    assert s3.requests["GET"] == 5  # 13 files, by three
    assert len(names(recursive=False)) == 9
    assert names(glob="within/*.png") == found[-1:]
    assert names(glob="*.txt") == ["notes.txt"]


def test_lists_name_images_of_a_store(run, s3, photos, stored, tmp_path):
    first, second = sorted(path.name for path in photos.glob("*.png"))[:2]
    (tmp_path / "list.txt").write_text(f"{stored}/{first}\nphotos/{second}\ns3://bucket/lost.png\n")
    lines, log = run(tmp_path / "list.txt")
    assert [line["image"] for line in lines] == [f"{stored}/{first}", str(photos / second)]
    assert "done 2" in log and "failed 1" in log
    (failed,) = failures(tmp_path)
    assert failed["error"] == "s3://bucket/lost.png: no such file or bucket"
    s3.files.pipe_file("bucket/a.csv", f"image\nphotos/{first}\n".encode())
    (tmp_path / "names.txt").write_text(f"{first}\n")
    for source, root in ("s3://bucket/a.csv", None), (str(tmp_path / "names.txt"), stored):
        (found,) = Request(source, tmp_path / "a.jsonl", root=root).images()
        assert found.image == f"{stored}/{first}"


def test_tars_are_captioned_as_on_disk_whatever_fails(run, s3, photos, tmp_path):
    found = sorted(photos.glob("*.png"))
    for number in range(2):
        path = tmp_path / f"{number}.tar"
        write_members(path, [(photo.name, photo.read_bytes()) for photo in found[number::2]])
        s3.files.put_file(str(path), f"bucket/{number}.tar")
    on_disk, _ = run(f"{tmp_path}/{{0..1}}.tar", folder="disk")
    s3.withheld = lambda path: path.endswith("1.tar")
    _, log = run("s3://bucket/{0..1}.tar", code=2)  # not reported as damaged
    assert "s3://bucket/1.tar: not allowed" in log and failures(tmp_path) == []
    s3.withheld = lambda path: False
    s3.faults += FAULTS
    in_store, _ = run("s3://bucket/{0..1}.tar")
    assert results(in_store, "s3://bucket") == results(on_disk, str(tmp_path))
    again, log = run("s3://bucket/{0..2}.tar")
    assert again == in_store and "skipped 9, failed 1" in log
    (failed,) = failures(tmp_path)
    assert failed["error"].endswith("s3://bucket/2.tar: no such file or bucket")


INVALID = [
    ("s3://no-bucket/photos", [], "s3://no-bucket/photos: no such file or bucket"),
    ("s3://bucket/empty", [], "s3://bucket/empty: found no images"),
    ("s3://key:S3CR3T@bucket/a", [], "s3://bucket/a: an address with a user or a query"),
    ("https://host/a.png?token=S3CR3T", [], "https://host/a.png: an address with a user or a"),
    ("https://host/folder/", [], "https://host/folder: an https server has no folders"),
    ("https://host/a.png", ["--sidecar"], "--sidecar: https://host is read-only: use --out"),
    ("s3://bucket/photos", ["--write-shards", "s3://no-bucket/a"], "no such file or bucket"),
    ("s3://bucket/photos", ["--write-shards", "s3:/bucket/a"], "--write-shards is on s3; use"),
    ("s3://bucket/photos", ["--parquet", "s3://k:S3CR3T@b/a"], "may contain a secret"),
    ("s3://bucket/photos", ["--parquet", "s3://a.parquet"], "--parquet is s3://a.parquet; it"),
    ("s3://bucket/photos", ["--out", "https://host/a.jsonl"], "--out is on https; use a path"),
    ("s3://bucket/photos", ["--out", "hf://datasets/a/b.jsonl"], "--out is on hf; use a path"),
    ("s3://bucket/photos", ["--out", "s3://bucket/a"], "--out is s3://bucket/a; it has to be"),
    ("s3://bucket/photos", ["--out", "s3://no-bucket/a.jsonl"], "no such file or bucket"),
]


def test_invalid_addresses_are_one_line_before_weights_are_loaded(run, s3, photos, loaded):
    s3.files.pipe_file("bucket/photos/a.png", min(photos.glob("*.png")).read_bytes())
    for source, flags, line in INVALID:
        _, log = run(source, *flags, code=2)
        assert "S3CR3T" not in one_error_line(log, line)
    assert loaded == []
