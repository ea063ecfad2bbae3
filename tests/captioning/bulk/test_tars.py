"""Tar shards in and out, compared with webdataset and tarfile."""

import contextlib
import gzip
import io
import json
import os
import shutil
import tarfile
import tracemalloc

import pytest
import torch
import webdataset
from PIL import Image

from captioning.bulk import tars
from captioning.bulk.reading import ShardImages
from captioning.bulk.shards import ShardFiles
from captioning.data import ShardDataset, Shards, training_transform
from captioning.files.tars import expand
from captioning.runtime.errors import UserError
from tests.captioning.bulk.conftest import read_lines
from tests.captioning.tar_files import write_members, write_tar


@contextlib.contextmanager
def memory_below(most):
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


@pytest.fixture
def shards(photos, tmp_path):
    """Return a brace pattern of three tars, of 5, 4 and 1 photos, and a bad one in the second."""
    found = sorted(photos.rglob("*.png"))
    folder = tmp_path / "shards"
    folder.mkdir()
    write_tar(folder / "00.tar", found[:5], [("notes.txt", b"no image of this name")])
    write_tar(folder / "01.tar", found[5:9], [("bad.jpg", b"no image")])
    write_tar(folder / "02.tar", found[9:])
    return f"{folder}/{{00..02}}.tar"


def test_every_image_of_every_tar_is_captioned_once(
    run, photos, shards, expected, tmp_path, monkeypatch
):
    lines, log = run(shards, "--num_workers", "2")
    by_id = {line["image_id"]: line for line in lines}
    assert sorted(by_id) == sorted(path.stem for path in photos.rglob("*.png"))
    assert len(lines) == 10
    for path in photos.rglob("*.png"):
        assert by_id[path.stem]["caption"] == expected(path)[0][0]
    assert lines[0]["image"] == shards.replace("{00..02}", "00") + "/scene_000000.png"
    (failed,) = read_lines(tmp_path / "out/failed.jsonl")
    assert failed["image"].endswith("01.tar/bad.jpg") and "not a readable" in failed["error"]
    assert "BytesIO" not in failed["error"]
    assert "done 10 (" in log and "failed 1" in log

    monkeypatch.setattr(tars, "members", lambda url: pytest.fail("read again"))
    again, log = run(shards)
    assert again == lines and "skipped 10, failed 1" in log


@pytest.mark.parametrize("source", ["pipe:touch ran; cat {}", "file:{}"])
def test_a_tar_name_runs_no_command(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "00.tar", [])
    with pytest.raises(UserError, match="1 of 1 tars are missing"):
        expand(source.format("00.tar"))
    (tmp_path / "pipe:touch ran; cat 00.tar").write_bytes((tmp_path / "00.tar").read_bytes())
    assert list(tars.members("pipe:touch ran; cat 00.tar")) == []
    assert not (tmp_path / "ran").exists()


def test_a_member_that_claims_to_be_huge_is_not_read(photos, tmp_path):
    huge = tarfile.TarInfo("huge.jpg")
    huge.size = 1 << 40
    first = sorted(photos.rglob("*.png"))[0]
    write_tar(tmp_path / "00.tar", [first])
    with tarfile.open(tmp_path / "00.tar", "a") as tar:
        tar.fileobj.write(huge.tobuf())
    with pytest.raises(ValueError, match=r"huge\.jpg has 1,099,511,627,776 bytes"):
        list(tars.members(str(tmp_path / "00.tar")))


def header(kind, size):
    """Return the header block of a member."""
    entry = tarfile.TarInfo("a")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


SIZE = 1 << 24
HUGE = {
    "a long name": header(tarfile.GNUTYPE_LONGNAME, SIZE) + b"a" * SIZE,
    "names of names": (header(tarfile.GNUTYPE_LONGNAME, 1 << 17) + b"a" * (1 << 17)) * 200,
}


@pytest.mark.parametrize("what", HUGE)
def test_a_header_that_is_huge_is_not_read(photos, tmp_path, what):
    first, second = sorted(photos.rglob("*.png"))[:2]
    write_tar(tmp_path / "00.tar", [first, second])
    members = (tmp_path / "00.tar").read_bytes().rstrip(b"\0")
    members += bytes(-len(members) % 512)
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        file.write(members + HUGE[what] + header(tarfile.REGTYPE, 0) + bytes(1024))
    found = tars.members(str(tmp_path / "a.tar.gz"))
    assert next(found).data == first.read_bytes()
    refused = pytest.raises(tarfile.ReadError, match="a header has more than 1,048,576 bytes")
    with memory_below(1 << 23), refused:
        next(found)


def test_only_one_image_of_a_sample_is_read(photos, tmp_path):
    first = sorted(photos.rglob("*.png"))[0]
    sizes = {"json": 4 * SIZE, "txt": SIZE, "mask.png": SIZE, "seg": SIZE}  # a small json is read
    more = [(f"{first.stem}.{suffix}", bytes(size)) for suffix, size in sizes.items()]
    more += [(f"{n}.txt", b"") for n in range(3000)]  # whose headers have 1.5 MB
    write_members(tmp_path / "a.tar", [(first.name, first.read_bytes()), *more])
    with memory_below(1 << 23):
        (found,) = tars.members(str(tmp_path / "a.tar"))
    assert found.data == first.read_bytes()


def test_a_batch_holds_no_more_files_than_two(tmp_path):
    """The one that is decoded, and the next."""
    write_members(tmp_path / "a.tar", [(f"{n}.png", bytes(1 << 22)) for n in range(8)])
    plan = [{"tar": str(tmp_path / "a.tar")}]
    images = ShardImages(lambda shard: plan, [(0, 0)], 8, lambda path, data, prompt: torch.zeros(1))
    with memory_below(5 << 22):
        batch, end = images
    assert len(batch.entries) == len(batch.image) == 8 and not end.entries


def test_a_name_that_comes_twice_is_one_image(run, photos, expected, tmp_path):
    a, b, c = sorted(photos.rglob("*.png"))[:3]
    members = [("a.png", a), ("a.png", b), ("b.png", b), ("a.png", c), ("a.PNG", c), ("c.png", c)]
    tar = tmp_path / "a.tar"
    write_members(tar, [(name, path.read_bytes()) for name, path in members])
    folder = tmp_path / "richer"
    lines, _ = run(tar, "--write-shards", str(folder))
    assert [line["image"] for line in lines] == [f"{tar}/{name}.png" for name in "abc"]
    assert [line["caption"] for line in lines] == [expected(path)[0][0] for path in (a, b, c)]
    read = webdataset.WebDataset(str(folder / "00000.tar"), shardshuffle=False)
    assert [sample["png"] for sample in read] == [path.read_bytes() for path in (a, b, c)]


@pytest.mark.parametrize("of_photos", [True, False])
def test_a_folder_may_have_the_name_of_a_tar(run, photos, tmp_path, of_photos):
    """A folder of photos, or of tars."""
    folder = tmp_path / "photos.tar"
    if of_photos:
        photos.rename(folder)
        (folder / "bad.png").write_bytes(b"no image")
    else:
        folder.mkdir()
        write_tar(folder / "00.tar", sorted(photos.rglob("*.png")), [("bad.jpg", b"no image")])
    source = folder if of_photos else folder / "00.tar"
    lines, log = run(source)
    assert len(lines) == 10 and "failed 1" in log
    again, log = run(source, "--retry-failed")
    assert again == lines and "skipped 10, failed 1" in log


def test_prompts_of_a_tar_are_those_of_a_list(run, photos, tmp_path):
    """In a batch as one by one; the field may come before the image or after it."""
    prompts = ["the", None, "a big", "on the", None]
    found = sorted(photos.rglob("*.png"))[: len(prompts)]
    rows = [{"image": str(path), "prompt": prompt} for path, prompt in zip(found, prompts)]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    expected, _ = run(tmp_path / "list.json", "--batch_size", "1", folder="list")
    members = []
    for number, (path, row) in enumerate(zip(found, rows)):
        text = (f"{path.stem}.json", json.dumps(row).encode())
        members += [text, (path.name, path.read_bytes())][:: 1 - 2 * (number % 2)]
    members += [("x.json", b"{"), ("x.png", found[0].read_bytes())]
    write_members(tmp_path / "a.tar", members)
    lines, _ = run(tmp_path / "a.tar", "--batch_size", "4")
    assert len(lines) == len(expected) == 5
    for line, one in zip(lines, expected):
        assert (line["caption"], line.get("prompt")) == (one["caption"], one.get("prompt"))
    failed = read_lines(tmp_path / "out/failed.jsonl")
    assert failed[-1]["error"].startswith(f"{tmp_path}/a.tar/x.png: not valid JSON at line 1")


def test_a_truncated_tar_is_continued_when_it_is_whole(run, photos, shards, tmp_path):
    tar = tmp_path / "shards" / "00.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[: len(whole) * 2 // 5])
    lines, log = run(shards)
    assert 6 <= len(lines) < 10 and "failed 2" in log
    failed = read_lines(tmp_path / "out/failed.jsonl")
    assert [line["error"] for line in failed if line["image"] == str(tar)] == [
        f"{tar}: cannot be read further: unexpected end of data"
    ]
    tar.write_bytes(whole)
    more, log = run(shards, "--retry-failed")
    assert more[: len(lines)] == lines
    images = [line["image"] for line in more]
    assert len(images) == len(set(images)) == 10
    assert f"done {10 - len(lines)} (" in log and f"skipped {len(lines)}, failed 1" in log
    failed = read_lines(tmp_path / "out/failed.jsonl")
    assert str(tar) not in [line["image"] for line in failed]


def test_captions_of_tars_are_replaced(run, shards):
    before, _ = run(shards)
    after, _ = run(shards, "--existing", "overwrite", "--prefix", "<")
    assert [f"<{line['caption']}" for line in before] == [line["caption"] for line in after]


def test_a_gap_in_a_tar_is_found(run, shards, tmp_path):
    lines, _ = run(shards)
    out = tmp_path / "out" / "captions.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines[:3] + lines[4:]))
    again, log = run(shards)
    assert len(again) == 9  # the marker says that this tar is done
    again, log = run(shards, "--verify")
    assert "verify: 9 have a caption, 1 tars have gaps, 1 failed before" in log
    assert again == lines[:3] + lines[4:] + [lines[3]]


def test_a_tar_replaced_while_it_is_captioned_is_read_by_the_next_call(
    run, photos, tmp_path, monkeypatch
):
    first, second = sorted(photos.rglob("*.png"))[:2]
    tar, seal = tmp_path / "a.tar", ShardFiles.seal
    write_members(tar, [("a.png", first.read_bytes())])
    write_members(tmp_path / "b.tar", [("b.png", second.read_bytes())])
    assert (tmp_path / "b.tar").stat().st_size == tar.stat().st_size

    def replace(self):
        (tmp_path / "b.tar").replace(tar)
        seal(self)

    with monkeypatch.context() as patch:
        patch.setattr(ShardFiles, "seal", replace)
        lines, _ = run(tar)
    assert [line["image_id"] for line in lines] == ["a"]
    assert [line["image_id"] for line in run(tar)[0]] == ["a", "b"]
    assert "done 0, skipped 2" in run(tar)[1]


@pytest.mark.parametrize("source", ["photos", "shards"])
def test_captions_go_back_into_shards(run, photos, shards, tmp_path, monkeypatch, source):
    folder = tmp_path / "richer"
    flags = ["--num_return", "2", "--shard_size", "4", "--write-shards", str(folder)]
    lines, _ = run(photos if source == "photos" else shards, *flags)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["00000.tar", "00001.tar", "00002.tar", "README.md", "owner.json"]
    urls = [str(folder / name) for name in names[:3]]
    read = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert len({sample["__key__"] for sample in read}) == len(read) == 10
    for sample, line, path in zip(read, lines, sorted(photos.rglob("*.png"))):
        assert sample["png"] == path.read_bytes()
        assert sample["txt"].decode() == "\n".join(line["captions"])
        assert json.loads(sample["json"]) == line
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trains = ShardDataset(Shards(urls), "", training_transform(8), 0, captions_per_image=2)
    assert [list(sample.captions) for sample in trains.samples] == [
        line["captions"] for line in lines
    ]
    assert trains[0, 9]["image"].shape == (8, 8, 3)
    if source == "shards":
        assert [sample["__key__"] for sample in read] == [line["image_id"] for line in lines]
    shutil.copy(min(photos.glob("*.png")), photos / "new.png")
    if source == "photos":  # a later photo is in a new tar
        run(photos, *flags)
        (sample,) = webdataset.WebDataset(str(folder / "00003.tar"), shardshuffle=False)
        assert sample["png"] == (photos / "new.png").read_bytes()


def test_photos_removed_before_a_tar_is_written_are_left_out(run, photos, tmp_path, monkeypatch):
    seal = ShardFiles.seal

    def lose(self):
        for name in ("scene_000001.png", "scene_000002.png"):
            (photos / name).unlink(missing_ok=True)
        os.mkfifo(photos / "scene_000002.png")
        seal(self)

    monkeypatch.setattr(ShardFiles, "seal", lose)
    lines, _ = run(photos, "--write-shards", str(tmp_path / "richer"))
    read = webdataset.WebDataset(str(tmp_path / "richer" / "00000.tar"), shardshuffle=False)
    assert len(lines) == 10 and len(list(read)) == 8


def test_sidecars_and_files_of_captions_are_for_photos(run, shards):
    for flags in (["--sidecar"], ["--captions", "captions.txt"]):
        assert f"{flags[0]} does not work with a .tar" in run(shards, *flags, code=2)[1]


def test_the_number_of_images_is_estimated_from_the_first_tar(shards, tmp_path):
    urls = expand(shards)
    assert [url[-6:] for url in urls] == ["00.tar", "01.tar", "02.tar"]
    assert 8 <= tars.estimate(urls) <= 13
    (tmp_path / "shards" / "00.tar").write_bytes(b"no tar")
    assert tars.estimate(urls) is None


def test_a_member_with_more_than_one_suffix_ends_in_the_last_one(tmp_path):
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "png")
    (tmp_path / "x.png").write_bytes(data.getvalue())
    write_tar(tmp_path / "a.tar", [], [("dir/k.left.PNG", data.getvalue()), ("k.json", b"{}")])
    (member,) = tars.members(str(tmp_path / "a.tar"))
    assert (member.key, member.data) == ("dir/k", data.getvalue())
    assert member.name == f"{tmp_path}/a.tar/dir/k.left.png"
