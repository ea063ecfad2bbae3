"""Tar shards in and out, compared with webdataset and tarfile."""

import gzip
import json
import shutil

import pytest
import webdataset

from captioning.data.augmentation import training_transform
from captioning.data.shards import ShardDataset, Shards
from captioning.files import tars
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


def test_every_image_of_every_tar_is_captioned_once(
    run, photos, shards, expected, failed, monkeypatch
):
    lines, log = run(shards, "num_workers=2")
    by_id = {line["image_id"]: line for line in lines}
    assert list(by_id) == [path.stem for path in sorted(photos.rglob("*.png"))]
    for path in photos.rglob("*.png"):
        assert by_id[path.stem]["caption"] == expected(path)[0][0]
    assert lines[0]["image"] == shards.replace("{00..02}", "00") + "/scene_000000.png"
    (error,) = failed().values()
    assert "01.tar/bad.jpg: not a readable" in error and "BytesIO" not in error
    assert "done 10, skipped 0, failed 1" in log
    with monkeypatch.context() as patch:
        patch.setattr(tars, "samples", lambda *given: pytest.fail("read again"))
        again, log = run(shards)
    assert again == lines and "skipped 11, failed 1" in log
    after, _ = run(shards, "--existing", "overwrite", "--prefix", "<")
    assert [f"<{line['caption']}" for line in lines] == [line["caption"] for line in after]


@pytest.mark.parametrize("name", ["a.tar.gz", "{0..1}.tar", "a::b.tar"])
def test_a_tar_has_one_name_and_may_be_packed(run, photos, expected, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    paths = sorted(photos.glob("*.png"))[:2]
    write_tar(tmp_path / name, paths)
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    lines, _ = run(name, f"./{name}", tmp_path / name)
    assert [line["image"] for line in lines] == [f"{name}/{path.name}" for path in paths]
    assert [line["caption"] for line in lines] == [expected(path)[0][0] for path in paths]
    _, log = run(tmp_path / name)
    assert "done 0, skipped 2" in log


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


def test_a_folder_may_have_the_name_of_a_tar(run, photos, tmp_path):
    """A folder of photos, or of tars."""
    of_photos, of_tars = photos.rename(tmp_path / "photos.tar"), tmp_path / "tars.tar"
    of_tars.mkdir()
    write_tar(of_tars / "00.tar", sorted(of_photos.rglob("*.png")), [("bad.jpg", b"no image")])
    for source, number in ((of_photos, 0), (of_tars / "00.tar", 1)):
        lines, log = run(source, folder=source.name)
        assert len(lines) == 10 and f"failed {number}" in log
        again, log = run(source, "--retry-failed", folder=source.name)
        assert again == lines and f"skipped 10, failed {number}" in log


def test_prompts_of_a_tar_are_those_of_a_list(run, photos, failed, tmp_path):
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
    assert "a.tar/x.png: not valid JSON at line 1" in failed()["x.png"]


def test_a_truncated_tar_is_continued_when_it_is_whole(run, shards, failed, tmp_path):
    tar = tmp_path / "shards" / "00.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[: len(whole) * 2 // 5])
    lines, log = run(shards)
    assert 6 <= len(lines) < 10 and "failed 2" in log
    assert failed()["00.tar"].startswith(f"{tar}: cannot be read further: ")
    tar.write_bytes(whole)
    more, log = run(shards, "--retry-failed")
    assert more[: len(lines)] == lines
    assert len({line["image"] for line in more}) == len(more) == 10
    assert f"done {10 - len(lines)}, skipped {len(lines)}, failed 1" in log
    assert "00.tar" not in failed()


def test_a_tar_that_has_grown_is_read_again(run, photos, tmp_path):
    paths = sorted(photos.rglob("*.png"))
    for number in (4, 10):
        write_tar(tmp_path / "a.tar", paths[:number])
        lines, _ = run(tmp_path / "a.tar")
        assert [line["image_id"] for line in lines] == [path.stem for path in paths[:number]]


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


def test_sidecars_and_files_of_captions_are_for_photos(run, shards):
    for flags in (["--sidecar"], ["--captions", "captions.txt"], ["--metadata", "metadata.jsonl"]):
        assert f"{flags[0]} does not work with a .tar" in run(shards, *flags, code=2)[1]
