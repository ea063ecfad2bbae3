"""Samples of tars, as webdataset sees them; and tars that are broken, or made to do harm."""

import gzip
import io
import random
import tarfile
import tracemalloc

import pytest

from captioning.files import tars
from captioning.files.stores import read_range
from captioning.runtime.errors import UserError
from tests.captioning.tar_files import write_members
from tests.programs import raises_line

MEMBERS = [  # of eight samples, two of which have no image
    ("in.a/k.left.PNG", b"first"),
    ("in.a/k.right.png", b"second"),
    ("in.a/k.txt", b"\xef\xbb\xbf a dog \r\n\na cat\n"),
    ("notes.txt", b"of no image"),
    ("b.json", b'{"text": "a bus", "image_id": 5.5, "prompt": "the", "width": 3}'),
    ("b.jpg", b"third"),
    ("c.json", b"[1]"),
    ("c.png", b"fourth"),
    ("b.jpg", b"of a name that came before"),
    ("d.json", b"{"),
    ("d.jpg", b"fifth"),
    ("e.1.png", b"sixth"),
    ("e.1.txt", b"one"),
    ("e.2.png", b"of another image's key"),
    ("e.2.txt", b"two"),
    ("f.psd", b"no image"),
]


@pytest.mark.parametrize("with_data", [True, False])
def test_a_sample_has_one_image_its_place_and_its_columns(tmp_path, with_data):
    tar, left_out = str(tmp_path / "a.tar"), []
    write_members(tar, MEMBERS)
    found = list(tars.samples(tar, with_data, left_out))
    assert [sample.key for sample in found] == ["in.a/k", "b", "c", "d", "e"]
    names = [f"{tar}/{name}" for name in ("in.a/k.left.png", "b.jpg", "c.png", "d.jpg", "e.1.png")]
    assert [sample.name for sample in found] == names
    content = [b"first", b"third", b"fourth", b"fifth", b"sixth"]
    assert [read_range(tar, s.position, s.size) for s in found] == content
    assert [sample.data for sample in found] == (content if with_data else [None] * 5)
    captions = [found[number].row.get("captions") for number in (0, 1, 2, 4)]
    assert captions == [["a dog", "", "a cat", ""], ["a bus"], None, ["one"]]
    assert (found[1].row["prompt"], found[1].row["width"]) == ("the", 3)
    not_used = ["in.a/k.right.png", "b.jpg", "e.2.png", "f.psd"]
    assert left_out == [f"{tar}/{name}" for name in not_used]
    with raises_line(UserError, start=f"{tar}/d.jpg: not valid JSON at line 1"):
        _ = found[3].row


@pytest.mark.parametrize("with_data", [True, False])
def test_a_tar_that_ends_early_gives_what_is_whole_and_then_one_line(tmp_path, with_data):
    path = tmp_path / "a.tar"
    starts = write_members(path, [("a.png", b"x" * 99), ("b.png", b"y" * 99), ("c.png", b"z" * 99)])
    whole = path.read_bytes()
    for size, keys, line in (
        (starts["c.png"] + 50, "ab", "unexpected end of data"),
        (starts["c.png"] - 300, "a", "it has no end marker: it was cut off"),  # in a header
        (starts["c.png"] + 512, "ab", "it has no end marker: it was cut off"),
        (0, "", "empty file"),
    ):
        path.write_bytes(whole[:size])
        found = []
        with raises_line(tars.BrokenTar, start=f"{path}: cannot be read further: {line}"):
            found.extend(sample.key for sample in tars.samples(str(path), with_data))
        assert found == list(keys)


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz"])
def test_any_damage_is_one_line(tmp_path, kind):
    path, change, errors = tmp_path / "a.tar", random.Random(0), []
    with tarfile.open(path, kind) as tar:
        for number in range(20):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = 2000
            tar.addfile(member, io.BytesIO(change.randbytes(2000)))
    whole = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(change.randint(1, 5)):
            damaged[change.randrange(len(damaged))] = change.randrange(256)
        path.write_bytes(damaged[: change.randrange(len(damaged))])
        try:
            list(tars.samples(str(path)))
        except tars.BrokenTar as error:
            errors.append(str(error))
    assert len(errors) > 40 and all(len(error.splitlines()) == 1 for error in errors)


@pytest.mark.parametrize("name", ["huge.jpg", "a.txt"])
def test_a_file_that_claims_to_be_huge_is_not_read(tmp_path, name):
    write_members(tmp_path / "a.tar", [("b.png", b"x"), ("a.png", b"y")])
    members = (tmp_path / "a.tar").read_bytes().rstrip(b"\0")
    members += bytes(-len(members) % 512)
    huge = tarfile.TarInfo(name)
    huge.size = 1 << 40
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        file.write(members + huge.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 24))
    found = tars.samples(str(tmp_path / "a.tar.gz"))
    assert next(found).data == b"x"
    tracemalloc.start()
    with raises_line(tars.BrokenTar, f"{name} has 1,099,511,627,776 bytes"):
        list(found)
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


def test_images_are_held_one_at_a_time(tmp_path):
    members = [(f"{n}.png", bytes(1 << 22)) for n in range(8)]
    members += [("7.seg", bytes(1 << 25)), *((f"x{n}.txt", b"") for n in range(3000))]
    write_members(tmp_path / "a.tar", members)
    tracemalloc.start()
    assert {each.size for each in tars.samples(str(tmp_path / "a.tar"))} == {1 << 22}
    # The loop holds one, too, and a file is joined from parts.
    assert tracemalloc.get_traced_memory()[1] < 4 << 22
    tracemalloc.stop()


def test_patterns_are_expanded_and_a_name_runs_no_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("0.tar", "1.tar", "pipe:touch ran; cat 0.tar"):
        write_members(tmp_path / name, [])
    assert tars.expand(f"{tmp_path}/{{0..1}}.tar") == [f"{tmp_path}/{n}.tar" for n in range(2)]
    assert list(tars.samples("pipe:touch ran; cat 0.tar")) == []
    assert not (tmp_path / "ran").exists()
    for pattern, line in {
        "{0..2}.tar": "1 of 3 tars are missing, the first is ",
        "file:0.tar": "1 of 1 tars are missing",
        "s3://b/{0..": "s3://b/{0..: not a pattern of tars",
        "s3://key:S3CR3T@b/{0..1}.tar": "s3://b/{0..1}.tar: an address with a user",
    }.items():
        with raises_line(UserError, start=line):
            tars.expand(pattern)
    assert all(map(tars.is_tars, ["a.tar", "A.TAR.GZ", "s3://b/{0..9}.tgz"]))
