"""Training on tar shards: the samples of files, in an order that goes on anywhere."""

import json

import pytest
import torch

from captioning.data import shards as of_shards
from captioning.data.annotations import Sample
from captioning.data.augmentation import training_transform
from captioning.data.dataset import TrainingDataset
from captioning.data.loader import training_loader
from captioning.data.shards import ShardDataset, Shards
from captioning.files import tars as tar_files
from captioning.files.stores import StoreError
from captioning.runtime.errors import UserError
from tests.captioning.data.conftest import assert_same_batches
from tests.captioning.object_store import FAULTS
from tests.captioning.tar_files import write_members
from tests.programs import raises_line


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def dataset(tars, skip=False, **settings):
    shards = Shards(tars, skip)
    return ShardDataset(shards, "", training_transform(8), 7, skip_bad_images=skip, **settings)


def members(photos, samples):
    for sample in samples:
        yield sample.image, (photos / sample.image).read_bytes()
        yield f"{sample.image[0]}.txt", "\n".join(sample.captions).encode()


@pytest.fixture
def tars(photos, samples):
    """Return the paths of three tars of the ten photos, with 4, 3 and 3 of them."""
    paths = [str(photos / f"{number}.tar") for number in range(3)]
    for path, part in zip(paths, (samples[:4], samples[4:7], samples[7:])):
        write_members(path, members(photos, part))
    return paths


def loaded(tars, epoch=0, first=0, batch_size=4, workers=0, **settings):
    loader = training_loader(dataset(tars, **settings), batch_size, num_workers=workers)
    loader.set_epoch(epoch, first)
    batches = list(loader)
    loader.close()
    return batches


@pytest.mark.parametrize("captions_per_image", [1, 2])
def test_an_item_is_that_of_the_same_files(tars, photos, samples, captions_per_image):
    of_tars = dataset(tars, captions_per_image=captions_per_image)
    transform = training_transform(8)
    of_files = TrainingDataset(samples, photos, transform, 7, captions_per_image)
    assert len(of_tars) == len(of_files) == (19 if captions_per_image == 1 else 10)
    for index in range(len(of_files)):
        one, other = of_tars[2, index], of_files[2, index]
        assert torch.equal(one["image"], other["image"])
        assert one["captions"] == other["captions"]
        assert one["image_id"].endswith(f".tar/{other['image_id'] - 100}.png")


def test_captions_and_prompts_of_json_files_are_read(photos):
    tar, image, found = str(photos / "a.tar"), (photos / "0.png").read_bytes(), []
    rows = [{"caption": "a", "prompt": "the"}, {"captions": ["b", "c"]}, {"caption": "d"}]
    for number, row in enumerate(rows):
        found += [(f"{number}.png", image), (f"{number}.json", json.dumps(row).encode())]
    write_members(tar, [*found, ("2.txt", b"e")])
    (batch,) = loaded([tar], batch_size=3, captions_per_image=2)
    assert dict(zip(batch["index"], batch["prompt"])) == {0: "the", 1: None, 2: None}
    captions = dict(zip(batch["index"], map(set, batch["captions"])))
    assert captions == {0: {"a"}, 1: {"b", "c"}, 2: {"e"}}
    assert [sample.prompt for sample in Shards([tar]).with_prompts()] == ["the", None, None]
    write_members(tar, found[2:])
    assert not list(Shards([tar]).with_prompts())


@pytest.mark.parametrize("shuffle_buffer", [1, 8, 1000])
def test_an_epoch_has_every_pair_once_in_an_order_of_its_own(tars, shuffle_buffer):
    orders = [list(dataset(tars, shuffle_buffer=shuffle_buffer).order(e)) for e in range(12)]
    assert all(sorted(order) == list(range(19)) for order in orders)
    assert len(set(map(tuple, orders))) == 12
    tar_of = [0] * 7 + [1] * 6 + [2] * 6  # of each pair
    changes = [sum(tar_of[a] != tar_of[b] for a, b in zip(order, order[1:])) for order in orders]
    if shuffle_buffer == 1:  # each tar is given out whole, in any order
        assert set(changes) == {2} and {tar_of[order[0]] for order in orders} == {0, 1, 2}
    else:
        assert min(changes) > 2


def test_batches_go_on_at_any_place_without_what_came_before(tars, monkeypatch):
    whole = loaded(tars, epoch=1, shuffle_buffer=1)
    read, span = [], of_shards.stores.read_range
    monkeypatch.setattr(of_shards.stores, "read_range", lambda *at: read.append(at) or span(*at))
    for first in range(4):
        read.clear()
        assert_same_batches(loaded(tars, 1, first, shuffle_buffer=1), whole[first:])
        assert len(read) == 4 * (4 - first)  # no image besides those that are given out


def test_a_tar_is_looked_into_once_and_again_when_it_has_changed(tars, photos, monkeypatch):
    dataset(tars)
    with monkeypatch.context() as patch:
        patch.setattr(tar_files, "samples", lambda *_, **__: pytest.fail("read again"))
        assert len(Shards(tars)) == 10
    write_members(tars[0], members(photos, [Sample("9.png", ("another",), 9)]))
    assert len(Shards(tars)) == 7


IMAGE = b"an image"  # stands for one
BAD = {
    "c.png: not a readable image (none of ": [("c.png", b"text"), ("c.txt", b"three")],
    "c.png has no caption: add one": [("c.png", IMAGE), ("c.txt", b" \n")],
    "c.png: its captions are not UTF-8 text": [("c.png", IMAGE), ("c.txt", b"\xff")],
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_sample_is_refused_or_skipped_and_counted(photos, line, capsys):
    tar, image = str(photos / "bad.tar"), (photos / "9.png").read_bytes()
    good = {name: [(f"{name}.png", IMAGE), (f"{name}.txt", name.encode())] for name in "abd"}
    samples = [*good["a"], *good["b"], *BAD[line], *good["d"]]
    write_members(tar, [(n, image if data == IMAGE else data) for n, data in samples])
    with raises_line(UserError, f"{tar}/{line}"):
        loaded([tar], batch_size=4)
    capsys.readouterr()
    is_found_late = "not a readable" in line
    (batch,) = loaded([tar], batch_size=3, skip=True)
    counted = f"1 of the tars' samples cannot be used. The first: {tar}/{line}"
    assert (counted in capsys.readouterr().err) == (not is_found_late)
    assert {caption for (caption,) in batch["captions"]} <= {"a", "b", "d"}
    assert len(batch["image"]) == 3 and len(Shards([tar], True)) == 3 + is_found_late


def test_tars_that_are_cut_off_or_have_nothing_else_are_refused(photos, samples):
    tar = str(photos / "a.tar")
    starts = write_members(tar, members(photos, samples[:3]))
    (photos / "a.tar").write_bytes((photos / "a.tar").read_bytes()[: starts["1.png"] + 100])
    with raises_line(UserError, f"{tar}: cannot be read further: unexpected end of data, or set"):
        Shards([tar])
    assert len(Shards([tar], True)) == 1
    write_members(tar, [("a.txt", b"x")])
    with raises_line(UserError, start=f"{tar}: no samples in 1 tars: none has an image"):
        Shards([tar])


def test_images_that_are_not_used_are_counted_once(photos, capsys):
    tar, image = str(photos / "a.tar"), (photos / "0.png").read_bytes()
    write_members(tar, [*((f"a.2023.{n}.png", image) for n in range(4)), ("a.txt", b"a beach")])
    for _ in range(2):
        assert len(list(Shards([tar]))) == 1
    said = capsys.readouterr().err
    line = f"3 files of the tars are not used, such as {tar}/a.2023.1.png: a sample has one"
    assert said.count("are not used") == said.count(line) == 1


@pytest.fixture
def stored(s3, tars):
    for number, tar in enumerate(tars):
        s3.files.put_file(tar, f"bucket/{number}.tar")
    return [f"s3://bucket/{number}.tar" for number in range(3)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_are_those_of_the_same_tars_on_disk_whatever_fails(s3, tars, stored, workers):
    for _ in range(2):
        s3.faults += FAULTS
        batches = loaded(stored, workers=workers)
        assert s3.faults == []
        assert_same_batches(batches, loaded(tars), keys=("captions", "index"))  # ids are addresses


def test_a_tar_that_vanishes_is_one_line_or_counted_but_a_refusal_ends_the_run(s3, stored):
    strict, lenient = (training_loader(dataset(stored, skip=skip), 3) for skip in (False, True))
    s3.files.rm_file("bucket/1.tar")
    with raises_line(UserError, start="s3://bucket/1.tar: no such file or bucket"):
        list(strict)
    assert len(list(lenient)) == 6 and lenient.skipped in (5, 6)  # a nineteenth pair has no batch
    s3.faults += ["refused"] * 100
    with raises_line(StoreError, "not allowed"):
        list(lenient)
