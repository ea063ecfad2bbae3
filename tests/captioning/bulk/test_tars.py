"""Tar shards in and out, the library or Python's tarfile as the other side."""

import io
import json
import shutil
import tarfile

import pytest
import webdataset
from PIL import Image

from captioning.bulk import tars
from captioning.data import ShardDataset, Shards, training_transform
from captioning.files.tars import expand
from captioning.runtime.errors import UserError
from tests.captioning.tar_files import write_members


def write_tar(path, photos, more=()):
    """A tar as any program makes it: the photos, each with a caption, and further members."""
    members = []
    for photo in photos:
        members += [(photo.name, photo.read_bytes()), (f"{photo.stem}.txt", b"old")]
    write_members(path, [*members, *more])


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


def test_every_image_of_every_tar(run, photos, shards, expected, tmp_path, monkeypatch):
    lines, said = run(shards, "--num_workers", "2")
    by_id = {line["image_id"]: line for line in lines}
    assert sorted(by_id) == sorted(path.stem for path in photos.rglob("*.png"))
    assert len(lines) == 10
    for path in photos.rglob("*.png"):
        assert by_id[path.stem]["caption"] == expected(path)[0][0]
    assert lines[0]["image"] == shards.replace("{00..02}", "00") + "/scene_000000.png"
    (failed,) = (json.loads(line) for line in (tmp_path / "out/failed.jsonl").open())
    assert failed["image"].endswith("01.tar/bad.jpg") and "not a readable" in failed["error"]
    assert "BytesIO" not in failed["error"]
    assert "done 10 (" in said and "failed 1" in said

    monkeypatch.setattr(tars, "members", lambda url: pytest.fail("read again"))
    again, said = run(shards)
    assert again == lines and "skipped 10, failed 1" in said


@pytest.mark.parametrize("source", ["pipe:touch ran; cat {}", "file:{}"])
def test_a_tar_is_a_file_and_nothing_is_run_for_it(source, tmp_path, monkeypatch):
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
        tar.addfile(huge)
    with pytest.raises(ValueError, match=r"huge\.jpg has 1,099,511,627,776 bytes"):
        list(tars.members(str(tmp_path / "00.tar")))


def test_a_tar_that_breaks_off_is_read_on_when_it_is_whole(run, photos, shards, tmp_path):
    tar = tmp_path / "shards" / "00.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[: len(whole) * 2 // 5])
    lines, said = run(shards)
    assert 6 <= len(lines) < 10 and "failed 2" in said
    failed = [json.loads(line) for line in (tmp_path / "out/failed.jsonl").open()]
    assert [line["error"] for line in failed if line["image"] == str(tar)] == [
        f"{tar}: cannot be read on: unexpected end of data"
    ]
    tar.write_bytes(whole)
    more, said = run(shards, "--retry-failed")
    assert more[: len(lines)] == lines
    images = [line["image"] for line in more]
    assert len(images) == len(set(images)) == 10
    assert f"done {10 - len(lines)} (" in said and f"skipped {len(lines)}, failed 1" in said
    assert str(tar) not in [
        json.loads(line)["image"] for line in (tmp_path / "out/failed.jsonl").open()
    ]


def test_captions_are_added_to_those_of_a_tar(run, shards):
    before, _ = run(shards)
    after, _ = run(shards, "--existing", "append")
    assert {line["image"]: f"{line['caption']} {line['caption']}" for line in before} == {
        line["image"]: line["caption"] for line in after
    }


def test_a_gap_in_a_tar_is_found(run, shards, tmp_path):
    lines, _ = run(shards)
    out = tmp_path / "out" / "captions.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines[:3] + lines[4:]))
    again, said = run(shards)
    assert len(again) == 9  # the marker says that this tar is done
    again, said = run(shards, "--verify")
    assert "verify: 9 have a caption, 1 tars have gaps, 1 failed before" in said
    assert again == lines[:3] + lines[4:] + [lines[3]]


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
    assert trains[0, 9]["image"].shape == (8, 8, 3)
    if source == "shards":
        assert [sample["__key__"] for sample in read] == [line["image_id"] for line in lines]
    shutil.copy(min(photos.glob("*.png")), photos / "new.png")
    if source == "photos":  # one that comes later goes into a tar of its own
        run(photos, *flags)
        (sample,) = webdataset.WebDataset(str(folder / "00003.tar"), shardshuffle=False)
        assert sample["png"] == (photos / "new.png").read_bytes()


def test_photos_gone_before_a_shard_is_written_are_left_out(run, photos, tmp_path, monkeypatch):
    from captioning.bulk.shards import Part

    seal = Part.seal

    def lose(self):
        (photos / "scene_000001.png").unlink(missing_ok=True)
        seal(self)

    monkeypatch.setattr(Part, "seal", lose)
    lines, _ = run(photos, "--write-shards", str(tmp_path / "richer"))
    read = webdataset.WebDataset(str(tmp_path / "richer" / "00000.tar"), shardshuffle=False)
    assert len(lines) == 10 and len(list(read)) == 9


def test_sidecars_and_files_of_captions_are_for_photos(run, shards):
    _, said = run(shards, "--sidecar", code=2)
    assert "a .tar has none beside it" in said
    _, said = run(shards, "--captions", "captions.txt", code=2)
    assert "--captions is for photos, and a .tar has its own" in said


def test_the_number_of_images_is_told_from_the_first_tar(shards, tmp_path):
    urls = expand(shards)
    assert [url[-6:] for url in urls] == ["00.tar", "01.tar", "02.tar"]
    assert 8 <= tars.estimate(urls) <= 13
    (tmp_path / "shards" / "00.tar").write_bytes(b"no tar")
    assert tars.estimate(urls) is None


def test_a_member_with_more_than_one_suffix(tmp_path):
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "png")
    (tmp_path / "x.png").write_bytes(data.getvalue())
    write_tar(tmp_path / "a.tar", [], [("dir/k.left.PNG", data.getvalue()), ("k.json", b"{}")])
    (member,) = tars.members(str(tmp_path / "a.tar"))
    assert (member.key, member.data) == ("dir/k", data.getvalue())
    assert member.name == f"{tmp_path}/a.tar/dir/k.left.png"
