"""Tar shards in and out, compared with webdataset and tarfile."""

import gzip
import json
import shutil

import pytest
import webdataset

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


@pytest.mark.parametrize("name", ["a.tar.gz", "{0..1}.tar"])
def test_a_tar_has_one_name_and_may_be_packed(run, photos, expected, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    paths = sorted(photos.glob("*.png"))[:2]
    write_tar(tmp_path / name, paths)
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    lines, _ = run(name, f"./{name}", tmp_path / name)
    assert [line["image"] for line in lines] == [f"{name}/{path.name}" for path in paths]
    assert [line["caption"] for line in lines] == [expected(path)[0][0] for path in paths]


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


def test_prompts_of_a_tar_are_those_of_a_list(run, photos, failed, tmp_path):
    """In a batch as one by one; the field may come before the image or after it."""
    rows = [{"prompt": prompt} if prompt else {} for prompt in ("the", "", "a big", "on the", "")]
    members, listed = [("x.json", b"{"), ("x.png", b"no image")], []
    for number, (path, row) in enumerate(zip(sorted(photos.rglob("*.png")), rows)):
        text, image = (f"{path.stem}.json", json.dumps(row).encode()), path.read_bytes()
        members += [text, (path.name, image)] if number % 2 else [(path.name, image), text]
        listed.append({"image": str(path), **row})
    (tmp_path / "list.json").write_text(json.dumps(listed))
    write_members(tmp_path / "a.tar", members)
    expected, _ = run(tmp_path / "list.json", "eval_batch_size=1", folder="list")
    lines, _ = run(tmp_path / "a.tar", "eval_batch_size=4")
    assert len(lines) == len(expected) == 5
    for line, one in zip(lines, expected):
        assert (line["caption"], line.get("prompt")) == (one["caption"], one.get("prompt"))
    assert "a.tar/x.png: not valid JSON at line 1" in failed()["x.png"]


def test_a_truncated_tar_and_one_that_has_grown_are_continued(run, photos, failed, tmp_path):
    tar, paths = tmp_path / "a.tar", sorted(photos.rglob("*.png"))
    write_tar(tar, paths[:6])
    whole = tar.read_bytes()
    tar.write_bytes(whole[: len(whole) * 2 // 3])
    some, log = run(tar)
    assert 1 < len(some) < 6 and "failed 1" in log
    assert failed()["a.tar"].startswith(f"{tar}: cannot be read further: ")
    tar.write_bytes(whole)
    six, log = run(tar, "--retry-failed")
    assert f"done {6 - len(some)}, skipped {len(some)}, failed 0" in log and not failed()
    write_tar(tar, paths)
    all_of_them, _ = run(tar)
    assert all_of_them[: len(some)] == some and all_of_them[:6] == six
    assert [line["image_id"] for line in all_of_them] == [path.stem for path in paths]


@pytest.mark.parametrize("source", ["photos", "shards"])
def test_captions_go_back_into_shards(run, photos, shards, tmp_path, source):
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
    if source == "shards":
        assert [sample["__key__"] for sample in read] == [line["image_id"] for line in lines]
        return
    shutil.copy(min(photos.glob("*.png")), photos / "new.png")
    run(photos, *flags)  # a later photo is in a new tar
    (sample,) = webdataset.WebDataset(str(folder / "00003.tar"), shardshuffle=False)
    assert sample["png"] == (photos / "new.png").read_bytes()
