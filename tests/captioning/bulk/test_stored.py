"""Inputs and outputs in an object store are those on disk, whatever fails."""

import itertools
import os
import signal

import pytest

from captioning.bulk.plan import Plan
from captioning.files import stores
from tests.captioning.bulk.conftest import contents
from tests.captioning.object_store import FAULTS, quick_retries, stamps
from tests.captioning.tar_files import write_tar
from tests.programs import one_error_line

OUT = "s3://bucket/within/captions.jsonl"


@pytest.fixture
def stored(s3, photos):
    for path in photos.rglob("*.png"):
        s3.files.put_file(str(path), f"bucket/photos/{path.relative_to(photos)}")
    for name in (".hidden/a.png", "notes.txt", "within/.b.png"):
        s3.files.pipe_file(f"bucket/photos/{name}", b"no photo")
    return "s3://bucket/photos"


def results(lines, before):
    return [(line["image"].removeprefix(before), line["caption"], line["score"]) for line in lines]


def test_photos_and_tars_are_captioned_as_on_disk_whatever_fails(
    run, s3, photos, stored, failed, tmp_path, monkeypatch
):
    import s3fs

    call_s3 = s3fs.S3FileSystem.call_s3
    pages_of_three = lambda *given, **query: call_s3(*given, MaxKeys=3, **query)  # noqa: E731
    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", pages_of_three)
    write_tar(tmp_path / "a.tar", sorted(photos.rglob("*.png")))
    s3.files.put_file(str(tmp_path / "a.tar"), "bucket/a.tar")
    on_disk, _ = run(tmp_path / "a.tar", photos, folder="disk")
    s3.faults += FAULTS * 3
    shards = ["--write-shards", str(tmp_path / "tars")]
    in_store, log = run("s3://bucket/a.tar", stored, "num_workers=2", *shards)
    assert s3.faults == [] and "done 20" in log and len(on_disk) == 20
    assert results(in_store, "s3://bucket") == results(on_disk, str(tmp_path))
    again, log = run("s3://bucket/a.tar", f"{stored}/", *shards)
    assert again == in_store and "skipped 20" in log
    assert not any(b"S3CR3T" in content for content in contents(tmp_path / "out").values())
    top, _ = run(stored, "--no-recursive", "--glob", "*2.png", folder="top")
    assert [line["image"] for line in top] == [f"{stored}/scene_000002.png"]
    run("s3://bucket/2.tar", code=2, folder="missing")
    assert failed("missing")["2.tar"].startswith("s3://bucket/2.tar: no such file")


@pytest.mark.parametrize("answered", [pytest.param(0, marks=pytest.mark.slow), 6])
def test_a_store_that_returns_nothing_any_more_ends_the_run(run, s3, stored, failed, answered):
    """For example when credentials expire: no image is reported as failed."""
    undisturbed, _ = run(stored, folder="undisturbed")
    requests = itertools.count()
    s3.refuses = lambda method, path: next(requests) >= answered
    flags = ["num_workers=1", "--shard_size", "3"]
    _, log = run(stored, *flags, code=2)
    one_error_line(log, "not allowed: give credentials")
    assert failed() == {}
    s3.refuses = lambda method, path: False
    lines, log = run(stored, *flags)
    assert lines == undisturbed and "failed 0" in log


def test_a_photo_that_a_store_refuses_or_lacks_fails_alone(
    run, s3, photos, stored, failed, tmp_path
):
    first, second, third = sorted(path.name for path in photos.glob("*.png"))[:3]
    s3.refuses = lambda method, path: path.endswith(second)
    names = [f"{stored}/{first}", f"{stored}/{second}", f"photos/{third}", "s3://bucket/lost.png"]
    (tmp_path / "list.txt").write_text("\n".join(names))
    lines, log = run(tmp_path / "list.txt")
    assert [line["image"] for line in lines] == [names[0], str(photos / third)]
    assert "done 2" in log and "failed 2" in log
    assert failed()[second].startswith(f"{names[1]}: not allowed")
    assert failed()["lost.png"] == "s3://bucket/lost.png: no such file or bucket"


def kill_before_put(number):
    """Return a hook that kills the process (-9) before it keeps its n-th file of lines."""

    def hook(rank):
        keep, numbers = Plan.keep, itertools.count(1)
        quick_retries(rank)

        def keep_or_die(self, *given):
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return keep(self, *given)

        Plan.keep = keep_or_die

    return hook


@pytest.mark.slow
def test_another_machine_continues_with_captions_tars_and_sidecars(
    s3, run, start, photos, stored, tmp_path, monkeypatch
):
    (photos / "bad.png").write_bytes(b"no image")
    s3.files.put_file(str(photos / "bad.png"), "bucket/photos/bad.png")
    flags = ["--shard_size", 2, "num_workers=0", "--sidecar", "--write-shards"]
    run(photos, *flags, tmp_path / "tars")
    for machine, kill in (("one", 2), ("two", 3)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        given = [*flags, "s3://bucket/tars"]
        process = start(*given, source=stored, out=OUT, hook=kill_before_put(kill))
        assert process.wait() == [-signal.SIGKILL], process.said()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
    _, log = run(stored, *flags, "s3://bucket/tars", out=OUT)
    assert "continuing" in log and "6/11" in log
    expected = contents(tmp_path / "out")
    assert sorted(stamps("s3://bucket/within")) == sorted(expected)
    on_disk = expected["captions.jsonl"].decode().replace(str(photos), stored)
    assert stores.read_bytes(OUT).decode() == on_disk
    tars = sorted(path.name for path in (tmp_path / "tars").iterdir())
    assert sorted(stores.names_in("s3://bucket/tars")) == tars
    for path in photos.rglob("*.txt"):
        beside = f"{stored}/{path.relative_to(photos)}"
        assert stores.read_bytes(beside) == path.read_bytes()
    _, log = run(stored, *flags[:-1], out="s3://bucket/other.jsonl")
    assert "done 0, skipped 10, failed 1" in log  # a photo with a sidecar has a caption
