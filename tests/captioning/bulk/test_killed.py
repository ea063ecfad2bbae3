"""Killed at any instant, the program continues: no image twice, none missing."""

import functools
import os
import random
import signal
import sys

import pytest

from captioning.bulk.shards import ShardFiles
from tests.captioning.bulk.conftest import killed_at, read_lines

# Told by Python of every file that is opened, renamed, linked, removed or cut off.
OPERATIONS = ("open", "os.rename", "os.link", "os.remove", "os.truncate", "os.mkdir", "os.rmdir")


def kill_before(operation, folder):
    """Return a hook that kills the process (-9) before the n-th operation on files in `folder`."""

    def hook(rank):
        left = operation

        def audit(event, given):
            nonlocal left
            if event in OPERATIONS and str(given[0]).startswith(str(folder)):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)

    return hook


def sidecars(photos):
    return {path.name: path.read_text() for path in sorted(photos.rglob("*.txt"))}


def test_killed_between_two_shards_it_continues(run, call, photos, tmp_path):
    whole, _ = run(photos, folder="whole")
    flags = ["--shard_size", "3", "--batch_size", "2"]
    call(*flags, hook=killed_at("000001.done"))
    assert not (tmp_path / "out" / "captions.jsonl").exists()
    lines, log = run(photos, *flags)
    assert "continuing" in log and "| 6/10" in log  # its captions are there, only unmarked
    assert [line["image"] for line in lines] == [line["image"] for line in whole]
    assert [line["caption"] for line in lines] == [line["caption"] for line in whole]


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param(lambda: iter([40, 90, 60]), marks=pytest.mark.slow, id="thrice"),
        pytest.param(
            lambda: iter(functools.partial(random.randint, 1, 130), None),
            marks=pytest.mark.soak,
            id="at random",
        ),
    ],
)
def test_killed_before_any_operation_it_writes_the_same_files(
    call, start, photos, tmp_path, itm_checkpoint, operations
):
    """Sidecars, tars and what the filter drops as well. operations: see `kill_before`."""
    (photos / "bad.png").write_bytes(b"no image")
    for path in photos.glob("scene*.png"):
        path.with_suffix(".txt").write_text("a tag\n")
    before = sidecars(photos)

    def caption_into(folder, do=call, **named):
        out = tmp_path / folder
        given = ["--shard_size", 3, "--batch_size", 2, "--num_workers", 0]
        given += ["--filter", "itm>0.5", "--itm_model", itm_checkpoint, "--existing", "overwrite"]
        given += ["--sidecar", "--write-shards", out / "tars"]
        return do(*given, out=out / "captions.jsonl", **named)

    caption_into("a")
    expected = sidecars(photos)
    for name, text in before.items():
        (photos / name).write_text(text)
    for path in (photos / "within").glob("*.txt"):
        path.unlink()
    kills, marker = 0, tmp_path / "b" / "captions.jsonl.done"
    for operation in operations():
        print(f"to be killed before operation {operation}")
        process = caption_into("b", start, hook=kill_before(operation, tmp_path))
        (code,) = process.wait()
        kills += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), process.said()
        if marker.exists() and not (tmp_path / "b/captions.jsonl.parts/plan.json").exists():
            break  # it has ended, or was killed after its last write
    else:
        caption_into("b")
    assert kills >= 1
    assert sidecars(photos) == expected and len(expected) >= 9
    names = ["captions.filtered.jsonl", "captions.jsonl"]
    names += ["captions.jsonl.done", "failed.jsonl", "tars"]
    found = {path.name for path in (tmp_path / "b").iterdir()} - {"captions.jsonl.parts"}
    assert sorted(found) == names
    for name in names[:-1]:
        one, two = ((tmp_path / folder / name).read_text() for folder in "ab")
        assert one.replace("/a/", "/b/") == two
    for tar in sorted((tmp_path / "a" / "tars").glob("*.tar")):
        assert tar.read_bytes() == (tmp_path / "b" / "tars" / tar.name).read_bytes()
    assert not [path for path in photos.rglob("*.staged")]
    lines = [line for n in names[:2] for line in read_lines(tmp_path / "b" / n)]
    assert len(lines) == 10


def test_partial_files_of_a_killed_repair_are_removed(run, call, photos, tmp_path):
    whole, _ = run(photos)
    out = tmp_path / "out" / "captions.jsonl"
    out.write_text(out.read_text() + "torn")
    call("--verify", hook=killed_at(out.name))
    assert out.read_text().endswith("torn")
    lines, log = run(photos, "--verify")
    assert lines == whole and "1 damaged lines" in log
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name, f"{out.name}.done"]


def test_a_journal_is_read_up_to_its_first_damage(tmp_path):
    part = ShardFiles(tmp_path, 3)
    for image in "abc":
        part.add([{"image": image}])
    lines = part.journal.read_bytes().splitlines(keepends=True)
    for damaged in (lines[1][:-1], lines[1][:-20], b"\0" * 40 + b"\n" + lines[2]):
        part.journal.write_bytes(lines[0] + damaged)
        again = ShardFiles(tmp_path, 3).recover()
        assert [line["image"] for line in again.lines] == ["a"]
        assert part.journal.read_bytes() == lines[0]
    again.add([{"image": "b"}])
    assert [line["image"] for line in ShardFiles(tmp_path, 3).recover().lines] == ["a", "b"]
