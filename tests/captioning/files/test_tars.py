"""Samples of tars, as webdataset sees them; and tars that are broken, or made to do harm."""

import contextlib
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

MEMBERS = [  # of six samples, two of which have no image
    ("__meta__/x.png", b"of no sample"),
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
]


@contextlib.contextmanager
def memory_below(most):
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


def test_texts_have_the_whole_name_of_their_image(tmp_path):
    tar, left_out = str(tmp_path / "a.tar"), []
    words = [("x.1.png", b"x"), ("x.1.txt", b"one"), ("x.2.png", b"x"), ("x.2.txt", b"two")]
    words += [("y.ocr.txt", b"no"), ("y.png", b"y"), ("y.txt", b"yes"), ("z.psd", b"z")]
    write_members(tar, [*words, ("z.txt", b"none"), ("z2.txt", b"none")])
    found = {each.name: each.row.get("captions") for each in tars.samples(tar, True, left_out)}
    assert found == {f"{tar}/x.1.png": ["one"], f"{tar}/y.png": ["yes"]}
    assert left_out == [f"{tar}/x.2.png", f"{tar}/z.psd"]


@pytest.mark.parametrize("with_data", [True, False])
def test_a_sample_has_one_image_its_place_and_its_columns(tmp_path, with_data):
    tar, left_out = str(tmp_path / "a.tar"), []
    write_members(tar, MEMBERS)
    found = list(tars.samples(tar, with_data, left_out))
    assert [sample.key for sample in found] == ["in.a/k", "b", "c", "d"]
    names = [f"{tar}/{name}" for name in ("in.a/k.left.png", "b.jpg", "c.png", "d.jpg")]
    assert [sample.name for sample in found] == names
    content = [b"first", b"third", b"fourth", b"fifth"]
    assert [read_range(tar, s.position, s.size) for s in found] == content
    assert [sample.data for sample in found] == (content if with_data else [None] * 4)
    captions = [sample.row.get("captions") for sample in found[:3]]
    assert captions == [["a dog", "", "a cat", ""], ["a bus"], None]
    assert (found[1].row["prompt"], found[1].row["width"]) == ("the", 3)
    assert left_out == [f"{tar}/in.a/k.right.png", f"{tar}/b.jpg"]
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


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:bz2", "w:xz"])
def test_any_damage_is_one_line(tmp_path, kind):
    data, change = io.BytesIO(), random.Random(0)
    with tarfile.open(fileobj=data, mode=kind) as tar:
        for number in range(20):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = 2000
            tar.addfile(member, io.BytesIO(change.randbytes(2000)))
    errors = []
    for _ in range(60):
        damaged = bytearray(data.getvalue())
        for _ in range(change.randint(1, 5)):
            damaged[change.randrange(len(damaged))] = change.randrange(256)
        (tmp_path / "a.tar").write_bytes(damaged[: change.randrange(len(damaged))])
        try:
            list(tars.samples(str(tmp_path / "a.tar")))
        except tars.BrokenTar as error:
            errors.append(str(error))
    assert len(errors) > 40 and all(len(error.splitlines()) == 1 for error in errors)


def test_an_image_that_is_huge_or_claims_to_be_is_not_read(tmp_path):
    write_members(tmp_path / "a.tar", [("a.png", b"x"), ("b.png", b"y")])
    members = (tmp_path / "a.tar").read_bytes().rstrip(b"\0")
    members += bytes(-len(members) % 512)
    huge = tarfile.TarInfo("huge.jpg")
    huge.size = 1 << 40
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        file.write(members + huge.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 24))
    found = tars.samples(str(tmp_path / "a.tar.gz"))
    assert next(found).data == b"x"
    line = "huge.jpg has 1,099,511,627,776 bytes"
    with memory_below(1 << 23), raises_line(tars.BrokenTar, line):
        list(found)


def test_images_are_held_one_at_a_time_and_no_large_text_at_all(tmp_path):
    members = [(f"{n}.png", bytes(1 << 22)) for n in range(8)]
    members += [(f"7.{suffix}", bytes(1 << 25)) for suffix in ("json", "mask.png", "seg")]
    members += [(f"x{n}.txt", b"") for n in range(3000)]
    write_members(tmp_path / "a.tar", members)
    with memory_below(4 << 22):  # the loop holds one, too, and a file is joined from parts
        for sample in tars.samples(str(tmp_path / "a.tar")):
            assert sample.size == 1 << 22 and not sample.row.get("captions")


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
    (tmp_path / "photos.tar").mkdir()
    assert not tars.is_tars(str(tmp_path / "photos.tar"))
    assert all(map(tars.is_tars, ["a.tar", "A.TAR.GZ", "s3://b/{0..9}.tgz"]))
