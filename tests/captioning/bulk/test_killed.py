"""Killed at any instant, the program continues: no image twice, none missing."""

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


@pytest.fixture
def until_done(start, tmp_path):
    """Return a function that calls the program, kills it at random, and calls it again."""

    def call(folder, dice, *flags):
        """Return the number of kills. dice: None for none."""
        for kills in range(200):
            hook = kill_before(dice.randint(1, 130), tmp_path) if dice else None
            given = ["--shard_size", 3, "--batch_size", 2, *flags]
            process = start(*given, out=folder / "captions.jsonl", hook=hook)
            codes = process.wait()
            assert codes in ([0], [-9]), process.said()
            marker, plan = (folder / f"captions.jsonl{n}" for n in (".done", ".parts/plan.json"))
            if codes == [0] or (marker.exists() and not plan.exists()):
                return kills  # it was killed after its last write
        raise AssertionError("it never ended")

    return call


def test_killed_at_random_it_writes_the_same_files(until_done, photos, tmp_path, itm_checkpoint):
    """Sidecars, tars and what the filter drops as well."""
    (photos / "bad.png").write_bytes(b"no image")
    for path in photos.glob("scene*.png"):
        path.with_suffix(".txt").write_text("a tag\n")
    given = ["--filter", "itm>0.5", "--itm_model", itm_checkpoint]
    given += ["--existing", "overwrite", "--sidecar", "--write-shards"]

    def sidecars():
        return {path.name: path.read_text() for path in sorted(photos.rglob("*.txt"))}

    before = sidecars()
    assert until_done(tmp_path / "a", None, *given, tmp_path / "a/tars") == 0
    expected = sidecars()
    for name, text in before.items():
        (photos / name).write_text(text)
    for path in (photos / "within").glob("*.txt"):
        path.unlink()
    assert until_done(tmp_path / "b", random.Random(1), *given, tmp_path / "b/tars") > 1
    assert sidecars() == expected and len(expected) >= 9
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
    assert call("--verify", hook=killed_at(out.name))[0] == -signal.SIGKILL
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
