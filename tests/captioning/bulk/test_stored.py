"""Inputs and outputs in an object store are those on disk, whatever fails."""

import itertools
import os
import signal

import pytest

from captioning.bulk.plan import Plan
from captioning.files import stores
from captioning.files.images import images_in
from tests.captioning.bulk.conftest import read_lines
from tests.captioning.object_store import FAULTS, stamps
from tests.captioning.tar_files import write_members
from tests.programs import one_error_line

OUT = "s3://bucket/within/captions.jsonl"


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
    in_store, log = run(stored, "num_workers=2", "--write-shards", str(tmp_path / "tars"))
    assert s3.faults == [] and "done 10" in log
    assert results(in_store, stored) == results(on_disk, str(photos))
    again, log = run(f"{stored}/")
    assert again == in_store and "skipped 10" in log
    for path in tmp_path.rglob("out/*"):
        assert "S3CR3T" not in path.read_text()


def test_keys_with_empty_parts_are_kept(run, s3, photos):
    s3.files.put_file(str(min(photos.glob("*.png"))), "bucket/odd/x//a.png")
    assert [line["image"] for line in run("s3://bucket/odd")[0]] == ["s3://bucket/odd/x//a.png"]


def failures(tmp_path):
    path = tmp_path / "out/captions.failed.jsonl"
    return read_lines(path) if path.exists() else []


@pytest.mark.parametrize("answered", [pytest.param(0, marks=pytest.mark.slow), 6])
def test_a_store_that_returns_nothing_any_more_ends_the_run(run, s3, stored, tmp_path, answered):
    """For example when credentials expire: no image is reported as failed."""
    undisturbed, _ = run(stored, folder="undisturbed")
    requests = itertools.count()
    s3.withheld = lambda path: next(requests) >= answered
    flags = ["num_workers=1", "--shard_size", "3"]
    _, log = run(stored, *flags, code=2)
    assert "run the same command again" in one_error_line(log, "not allowed: give credentials")
    assert failures(tmp_path) == []
    s3.withheld = lambda path: False
    lines, log = run(stored, *flags)
    assert lines == undisturbed and "failed 0" in log


def test_a_photo_that_a_store_refuses_fails_alone(run, s3, stored, tmp_path):
    name = sorted(name for name in s3.files.find("bucket/photos") if "scene_" in name)[4]
    s3.withheld = lambda path: path.endswith(name)
    lines, log = run(stored)
    assert len(lines) == 9 and "done 9" in log and "failed 1" in log
    (failed,) = failures(tmp_path)
    assert failed["image"] == f"s3://{name}" and "not allowed" in failed["error"]


def test_a_folder_is_listed_page_by_page(s3, stored, monkeypatch):
    import s3fs

    call_s3 = s3fs.S3FileSystem.call_s3
    pages_of_three = lambda *given, **query: call_s3(*given, MaxKeys=3, **query)  # noqa: E731
    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", pages_of_three)

    def names(**settings):
        return [name.removeprefix(f"{stored}/") for name in images_in(stored, **settings)]

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


def test_tars_are_captioned_as_on_disk_whatever_fails(run, s3, photos, tmp_path):
    paths = sorted(photos.rglob("*.png"))
    for number in range(2):
        of_tar = paths[number * 5 : number * 5 + 5]
        write_members(tmp_path / f"{number}.tar", [(p.name, p.read_bytes()) for p in of_tar])
        s3.files.put_file(str(tmp_path / f"{number}.tar"), f"bucket/{number}.tar")
    on_disk, _ = run(f"{tmp_path}/{{0..1}}.tar", folder="disk")
    s3.faults += FAULTS * 2
    in_store, _ = run("s3://bucket/{0..1}.tar")
    assert s3.faults == []
    assert results(in_store, "s3://bucket") == results(on_disk, str(tmp_path))
    assert "skipped 10" in run("s3://bucket/{0..1}.tar")[1]
    run("s3://bucket/2.tar", code=2, folder="missing")
    [failed] = read_lines(tmp_path / "missing/captions.failed.jsonl")
    assert failed["error"].startswith("s3://bucket/2.tar: no such file")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("s3://user:S3CR3T@bucket/a", "s3://bucket/a: an address with a user or a query may"),
        ("s3://bucket/a.jpg?S3CR3T", "give credentials where s3fs finds them"),
        ("https://host/folder/", "an https server has no folders: give a list of its files"),
    ],
)
def test_invalid_addresses_are_one_line_before_weights_are_loaded(run, source, line, loaded):
    _, log = run(source, code=2)
    assert "S3CR3T" not in log and line in one_error_line(log, "error: ") and loaded == []


def in_store():
    """The bytes of each file beside the captions in the store, by its name."""
    names = stamps("s3://bucket/within")
    return {name: stores.read_bytes(f"s3://bucket/within/{name}") for name in names}


def kill_before_put(number):
    """Return a hook that kills the process (-9) before it keeps its n-th file of lines."""

    def hook(rank):
        keep, left = Plan.keep, number

        def keep_or_die(self, *given):
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return keep(self, *given)

        Plan.keep = keep_or_die

    return hook


@pytest.mark.slow
def test_another_machine_continues_with_captions_tars_and_sidecars(
    s3, call, photos, stored, tmp_path, monkeypatch
):
    (photos / "bad.png").write_bytes(b"no image")
    s3.files.put_file(str(photos / "bad.png"), "bucket/photos/bad.png")
    flags = ["--shard_size", 2, "num_workers=0", "--sidecar"]
    disk = tmp_path / "disk"
    call(*flags, "--write-shards", disk / "tars", out=disk / "captions.jsonl")
    for machine, kill in (("one", 2), ("two", 3), ("three", None)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        hook = kill_before_put(kill) if kill else None
        given = [*flags, "--write-shards", "s3://bucket/tars"]
        log = call(*given, source=stored, out=OUT, hook=hook)
    assert "continuing" in log and "6/11" in log
    expected = (disk / "captions.jsonl").read_text().replace(str(photos), stored)
    assert in_store()["captions.jsonl"].decode() == expected
    assert sorted(in_store()) == [
        *("captions.failed.jsonl", "captions.jsonl", "captions.jsonl.done")
    ]
    tars = sorted(path.name for path in (disk / "tars").iterdir())
    assert sorted(stores.names_in("s3://bucket/tars")) == tars
    for path in photos.rglob("*.txt"):
        beside = f"{stored}/{path.relative_to(photos)}"
        assert stores.read_bytes(beside) == path.read_bytes()
    log = call(*flags, source=stored, out="s3://bucket/other.jsonl")
    assert (
        "done 0 (" in log and "skipped 10, failed 1" in log
    )  # a photo with a sidecar has a caption


def test_a_refusal_in_the_middle_loses_nothing(s3, call, photos):
    flags = ["--shard_size", 2, "num_workers=0"]
    s3.refused = "0000002.0.2.last.jsonl"
    one_error_line(call(*flags, out=OUT, code=2), "not allowed")
    s3.refused = None
    log = call(*flags, out=OUT)
    assert "continuing" in log and "6/10" in log and "done 10" in log
    assert len(in_store()["captions.jsonl"].splitlines()) == 10
