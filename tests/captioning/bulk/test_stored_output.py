"""Captions in an object store equal those on disk, byte by byte, whatever machine is lost."""

import json
import os
import signal

import pytest

from captioning.bulk import stored_output
from captioning.bulk.sidecars import Sidecars
from captioning.files import stores, uploads
from tests.captioning.object_store import FAULTS
from tests.programs import one_error_line

OUT = "s3://bucket/within/captions.jsonl"
NAMES = ("captions.jsonl", "captions.jsonl.done", "failed.jsonl")


def kill_before(request):
    """Return a hook that kills the process (-9) before the n-th write or removal in the store."""

    def hook(rank):
        left = request

        def counted(original):
            def call(*arguments):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments)

            return call

        for name in ("upload", "put", "remove", "remove_folder"):
            setattr(uploads, name, counted(getattr(uploads, name)))

    return hook


@pytest.fixture
def call(call, photos, tmp_path, monkeypatch):
    """Return a function that captions on the machine of a name; see `call`."""
    (photos / "bad.png").write_bytes(b"no image")

    def run(machine, *flags, out=OUT, **named):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        return call("--shard_size", 3, "--batch_size", 2, *flags, out=out, **named)

    return run


@pytest.fixture
def on_disk(call, tmp_path):
    """Return what a run that writes to this disk writes."""
    call("disk", out=tmp_path / "disk/captions.jsonl")
    return {name: (tmp_path / "disk" / name).read_bytes() for name in NAMES}


def in_store():
    return {
        name: stores.read_bytes(f"s3://bucket/within/{name}") for name in stores.stamps(OUT[:18])
    }


def killed_twice(call, *arguments, elsewhere=True, **named):
    """Call on two machines, or one, that are lost, in a shard and later; then on a third."""
    for number, request in enumerate((5, 8)):
        call(f"m{number * elsewhere}", *arguments, hook=kill_before(request), **named)
    call(f"m{2 * elsewhere}", *arguments, **named)


@pytest.mark.slow
def test_killed_twice_it_continues_on_the_same_machine(s3, call, on_disk):
    s3.faults += FAULTS * 2
    killed_twice(call, elsewhere=False)
    assert s3.faults == [] and in_store() == on_disk
    log = call("another")
    assert "done 0, skipped 10, failed 1" in log and OUT in log
    assert in_store() == on_disk


@pytest.mark.slow
def test_tars_and_parquet_in_a_store_are_those_on_disk(s3, call, on_disk, tmp_path):
    pytest.importorskip("pyarrow")
    tars, table, out = tmp_path / "tars", tmp_path / "a.parquet", tmp_path / "again/captions.jsonl"
    given = ["--write-shards", str(tars), "--parquet", str(table)]
    call("disk", *given, out=out)
    s3.faults += FAULTS
    given = ["--write-shards", "s3://bucket/tars/", "--parquet", "s3://bucket/tables/a.parquet"]
    killed_twice(call, *given)
    assert in_store() == on_disk and s3.faults == []
    assert stores.read_bytes("s3://bucket/tables/a.parquet") == table.read_bytes()
    expected = {path.name: path.read_bytes() for path in tars.glob("*.tar")}
    assert len(expected) == 4
    assert stores.stamps("s3://bucket/tars").keys() == {*expected, "README.md", "owner.json"}
    for name, content in expected.items():
        assert stores.read_bytes(f"s3://bucket/tars/{name}") == content
    # Further tars get further numbers.
    call("one", *given, "--existing", "overwrite")
    numbered = [f"{i:05d}.tar" for i in range(8)]
    assert sorted(stores.stamps("s3://bucket/tars")) == [*numbered, "README.md", "owner.json"]


@pytest.mark.slow
def test_sidecars_beside_the_photos_of_a_store_survive_kills(s3, call, photos, tmp_path):
    for path in photos.rglob("*.png"):
        s3.files.put_file(str(path), f"bucket/photos/{path.relative_to(photos)}")
    s3.faults += FAULTS
    given, source = ["--sidecar", ".caption"], "s3://bucket/photos"

    def sidecars():
        names = [name for name in stores.stamps(source) if name.endswith(".caption")]
        return {
            f"{source}/{name}": stores.read_bytes(f"{source}/{name}").decode() for name in names
        }

    def expected():
        lines = map(json.loads, stores.read_bytes(OUT).splitlines())
        named = {os.path.splitext(line["image"])[0]: line for line in lines}
        captions = {name: line.get("captions", [line["caption"]]) for name, line in named.items()}
        return {f"{name}.caption": "\n".join([*of, ""]) for name, of in captions.items()}

    killed_twice(call, *given, source=source)
    assert len(sidecars()) == 10 and sidecars() == expected()
    uploads.remove(min(sidecars()))
    log = call("one", *given, "--verify", source=source)
    assert "1 sidecars were missing" in log and sidecars() == expected()
    # A photo with one has a caption, whatever wrote it.
    uploads.remove(OUT)
    assert "found" not in stores.stamps("s3://bucket/within")
    assert "done 0, skipped 10, failed 1" in call("other", *given, source=source)
    uploads.put(b"a dog\n", min(sidecars()))
    log = call("other", *given, "--existing", "overwrite", source=source)
    assert "done 10" in log and sidecars() == expected()


def test_a_refusal_in_the_middle_loses_nothing(s3, call, on_disk):
    s3.refused = ".000002.jsonl"
    assert "nothing is lost" in one_error_line(call("one", code=2), "not allowed")
    s3.refused = None
    call("one")
    assert in_store() == on_disk


@pytest.mark.slow
@pytest.mark.parametrize("step", ["upload_shard", "before_merging", "upload_captions"])
def test_a_machine_whose_plan_was_replaced_writes_nothing(s3, call, on_disk, monkeypatch, step):
    original = getattr(stored_output, step)

    def overtaken(request, plan, *part):
        stored_output.remove(request)
        original(request, plan, *part)

    with monkeypatch.context() as patch:
        patch.setattr(stored_output, step, overtaken)
        line = one_error_line(call("one", code=2), f"{OUT}: another machine has continued or res")
        assert "the same command captions what is left" in line
        assert in_store() == {}
        log = call("one", "--existing", "overwrite", code=2)
        assert "the same command overwrites them again" in log and in_store() == {}
    call("two")
    assert in_store() == on_disk


@pytest.mark.slow
@pytest.mark.parametrize("header", ['{"file": ', '{"file": 7}', '{"file": "%s/plan.jsonl"}'])
def test_a_plan_that_is_damaged_is_dropped_when_asked_to(s3, call, on_disk, tmp_path, header):
    parts = "s3://bucket/within/captions.jsonl.parts"
    if "%s" in header:  # the bucket cannot make it write elsewhere on this disk
        header %= tmp_path
        s3.files.pipe_file(f"{parts}/plan.{tmp_path}/plan.jsonl", b"{}")
        s3.files.pipe_file(f"{parts}/plan.000000.done", b"{}")
    s3.files.pipe_file(f"{parts}/plan.json", header.encode())
    log = call("one", code=2)
    assert f"error: {OUT}.parts/plan.json is damaged" in log and "--restart" in log
    assert not (tmp_path / "plan.jsonl").exists()
    call("one", "--restart")
    assert in_store() == on_disk


@pytest.mark.slow
def test_overwriting_goes_on_on_other_machines(s3, call, photos, tmp_path):
    def sidecars():
        return {path.name: path.read_text() for path in photos.rglob("*.txt")}

    out, flags = tmp_path / "disk/captions.jsonl", ["--existing", "overwrite", "--sidecar"]
    call("disk", out=out)
    call("disk", *flags, "--num_return", "2", out=out)
    expected = {name: (tmp_path / "disk" / name).read_bytes() for name in NAMES}, sidecars()
    assert len(expected[1]) == 10
    for path in photos.rglob("*.txt"):
        path.unlink()
    call("one")
    for machine in ("two", "three"):
        call(machine, *flags, "--num_return", "2", hook=kill_before(7))
        for path in photos.rglob("*.txt"):  # the next machine has another disk
            path.unlink()
    call("four", *flags, "--num_return", "2")
    assert (in_store(), sidecars()) == expected


@pytest.mark.slow
def test_files_of_an_earlier_plan_are_not_mixed_with_the_next(s3, call, photos, tmp_path):
    """The first machine is killed while it removes its plan, the second during its own."""
    call("one", hook=kill_before(8))
    (header,) = (tmp_path / "one").rglob("plan.json")
    header.unlink()
    first = min(photos.glob("scene*.png"))
    (photos / "a.png").write_bytes(first.read_bytes())
    first.unlink()
    call("two", "--restart", hook=kill_before(8))
    call("one")
    call("disk", out=tmp_path / "disk/captions.jsonl")
    assert in_store() == {name: (tmp_path / "disk" / name).read_bytes() for name in NAMES}


@pytest.mark.slow
def test_sidecars_of_shards_from_elsewhere_outlive_a_kill(s3, call, photos):
    """With --existing overwrite no later call would find missing sidecars."""
    flags = ["--existing", "overwrite", "--sidecar"]
    call("one", *flags, hook=kill_before(5))
    own = set(photos.rglob("*.txt"))
    call("two", *flags, hook=kill_before(5))
    for path in set(photos.rglob("*.txt")) - own:  # the second machine has another disk
        path.unlink()

    def hook(rank):
        Sidecars.write = lambda *given: os.kill(os.getpid(), signal.SIGKILL)

    call("one", *flags, hook=hook)
    call("one", *flags)
    assert len(list(photos.rglob("*.txt"))) == 10
