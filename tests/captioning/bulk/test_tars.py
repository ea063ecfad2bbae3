"""Tar shards in and out, compared with webdataset and tarfile."""

import json
import shutil
import tracemalloc
from types import SimpleNamespace

import pytest
import torch
import webdataset

from captioning.bulk import inputs, outputs
from captioning.bulk.plan import Plan
from captioning.bulk.work import Batch, _Images
from captioning.data.augmentation import training_transform
from captioning.data.shards import ShardDataset, Shards
from captioning.files import tars
from tests.captioning.bulk.conftest import read_lines
from tests.captioning.tar_files import write_members, write_tar


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


@pytest.fixture
def no_tar_is_read(monkeypatch):
    monkeypatch.setattr(tars, "samples", lambda *given: pytest.fail("read again"))


def test_every_image_of_every_tar_is_captioned_once(
    run, photos, shards, expected, tmp_path, request
):
    lines, log = run(shards, "num_workers=2")
    by_id = {line["image_id"]: line for line in lines}
    assert list(by_id) == [path.stem for path in sorted(photos.rglob("*.png"))]
    for path in photos.rglob("*.png"):
        assert by_id[path.stem]["caption"] == expected(path)[0][0]
    assert lines[0]["image"] == shards.replace("{00..02}", "00") + "/scene_000000.png"
    (failed,) = read_lines(tmp_path / "out/captions.failed.jsonl")
    assert failed["image"].endswith("01.tar/bad.jpg") and "not a readable" in failed["error"]
    assert "BytesIO" not in failed["error"] and "done 10 (" in log and "failed 1" in log
    request.getfixturevalue("no_tar_is_read")
    again, log = run(shards)
    assert again == lines and "skipped 10, failed 1" in log


@pytest.mark.parametrize("name", ["a.tar", "{0..1}.tar", "a::b.tar"])
def test_a_tar_has_one_name_which_may_have_braces(run, photos, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / name, sorted(photos.glob("*.png"))[:2])
    lines, _ = run(name, f"./{name}", tmp_path / name)
    assert [line["image"] for line in lines] == [
        f"{name}/scene_000000.png",
        f"{name}/scene_000001.png",
    ]
    _, log = run(tmp_path / name)
    assert "done 0, skipped 2" in log


def test_packed_tars_and_uncompressed_ones_have_the_same_captions(run, photos, tmp_path):
    import gzip

    write_tar(tmp_path / "a.tar", sorted(photos.rglob("*.png")))
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    one, _ = run(tmp_path / "a.tar")
    two, _ = run(tmp_path / "b.tar.gz", folder="packed")
    assert [line["caption"] for line in one] == [line["caption"] for line in two]


def test_a_batch_holds_no_more_files_than_two(tmp_path):
    """The one that is decoded, and the next."""
    write_members(tmp_path / "a.tar", [(f"{n}.png", bytes(1 << 22)) for n in range(8)])
    unit = {"tar": str(tmp_path / "a.tar"), "skip": [], "prompt": None}
    model = SimpleNamespace(read=lambda *given: torch.zeros(1), collate=torch.stack, filter=None)
    images = _Images(model)
    tracemalloc.start()
    entries = list(inputs.entries_of(unit, []))
    batch = images[Batch(0, 0, entries)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(batch.image) == 8 and peak < 5 << 22


def test_files_in_tars_that_are_not_captioned_are_counted(run, photos, expected, tmp_path):
    a, b, c = sorted(photos.rglob("*.png"))[:3]
    members = [("a.png", a), ("a.png", b), ("b.0.png", b), ("b.1.png", c), ("c.png", c)]
    tar = tmp_path / "a.tar"
    others = [("d.svg", b""), ("d.txt", b""), ("e.txt", b"")]
    write_members(tar, [*((name, path.read_bytes()) for name, path in members), *others])
    folder = tmp_path / "richer"
    lines, log = run(tar, "--write-shards", str(folder))
    assert [line["image"] for line in lines] == [f"{tar}/{n}.png" for n in ("a", "b.0", "c")]
    assert [line["caption"] for line in lines] == [expected(path)[0][0] for path in (a, b, c)]
    assert f"left out: 3 files in tars, such as {tar}/a.png: a sample" in log
    read = list(webdataset.WebDataset(str(folder / "00000.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in read] == ["a", "b", "c"]


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
    expected, _ = run(tmp_path / "list.json", "eval_batch_size=1", folder="list")
    members = []
    for number, (path, row) in enumerate(zip(found, rows)):
        text = (f"{path.stem}.json", json.dumps(row).encode())
        members += [text, (path.name, path.read_bytes())][:: 1 - 2 * (number % 2)]
    members += [("x.json", b"{"), ("x.png", found[0].read_bytes())]
    write_members(tmp_path / "a.tar", members)
    lines, _ = run(tmp_path / "a.tar", "eval_batch_size=4")
    assert len(lines) == len(expected) == 5
    for line, one in zip(lines, expected):
        assert (line["caption"], line.get("prompt")) == (one["caption"], one.get("prompt"))
    failed = read_lines(tmp_path / "out/captions.failed.jsonl")
    assert "a.tar/x.png: not valid JSON at line 1" in failed[-1]["error"]


def test_a_truncated_tar_is_continued_when_it_is_whole(run, shards, tmp_path):
    tar = tmp_path / "shards" / "00.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[: len(whole) * 2 // 5])
    lines, log = run(shards)
    assert 6 <= len(lines) < 10 and "failed 2" in log
    failed = read_lines(tmp_path / "out/captions.failed.jsonl")
    [error] = [line["error"] for line in failed if line["image"] == str(tar)]
    assert error.startswith(f"{tar}: cannot be read further: ")
    tar.write_bytes(whole)
    more, log = run(shards, "--retry-failed")
    assert more[: len(lines)] == lines
    images = [line["image"] for line in more]
    assert len(images) == len(set(images)) == 10
    assert f"done {10 - len(lines)} (" in log and f"skipped {len(lines)}, failed 1" in log
    failed = read_lines(tmp_path / "out/captions.failed.jsonl")
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
    assert "done 1 (" in log and "skipped 9, failed 1" in log
    assert again == lines[:3] + lines[4:] + [lines[3]]


def test_a_tar_replaced_while_it_is_captioned_is_read_by_the_next_call(
    run, photos, tmp_path, monkeypatch
):
    first, second = sorted(photos.rglob("*.png"))[:2]
    tar, keep = tmp_path / "a.tar", Plan.keep
    write_members(tar, [("a.png", first.read_bytes())])
    write_members(tmp_path / "b.tar", [("b.png", second.read_bytes())])
    assert (tmp_path / "b.tar").stat().st_size == tar.stat().st_size

    def replace(self, *given):
        (tmp_path / "b.tar").replace(tar)
        return keep(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "keep", replace)
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
    assert names == ["00000.tar", "00001.tar", "00002.tar"]
    urls = [str(folder / name) for name in names]
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
    if source == "shards":
        assert [sample["__key__"] for sample in read] == [line["image_id"] for line in lines]
        return
    shutil.copy(min(photos.glob("*.png")), photos / "new.png")
    run(photos, *flags)  # a later photo is in a new tar
    (sample,) = webdataset.WebDataset(str(folder / "00003.tar"), shardshuffle=False)
    assert sample["png"] == (photos / "new.png").read_bytes()


def test_photos_removed_before_a_tar_is_written_are_left_out(run, photos, tmp_path, monkeypatch):
    write_tar = outputs.write_tar

    def lose(*given):
        (photos / "scene_000001.png").unlink()
        write_tar(*given)

    monkeypatch.setattr(outputs, "write_tar", lose)
    lines, _ = run(photos, "--write-shards", str(tmp_path / "richer"))
    read = webdataset.WebDataset(str(tmp_path / "richer" / "00000.tar"), shardshuffle=False)
    assert len(lines) == 10 and len(list(read)) == 9


def test_sidecars_and_files_of_captions_are_for_photos(run, shards):
    for flags in (["--sidecar"], ["--captions", "captions.txt"], ["--metadata", "metadata.jsonl"]):
        assert f"{flags[0]} does not work with a .tar" in run(shards, *flags, code=2)[1]
