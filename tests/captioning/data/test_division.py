"""Data divided in splits, by shares or lists, and annotation files and photos in several places."""

import hashlib
import json
import random
from pathlib import Path

import pytest

from captioning.config import load_config
from captioning.data.annotations import read_annotations
from captioning.data.caption_files import read_references
from captioning.data.sources import read_split, references
from captioning.metrics.image_files import find_images
from captioning.runtime.errors import UserError
from tests.captioning.data.caption_formats import FORMATS, coco, karpathy, write_captions
from tests.programs import raises_line

CAPTIONS = ("A dog , a red ball next to it .", '"Dogs only" , says a sign', "4 dogs | a cat", "🐕")
# As Flickr8k has them: what some end in is taken for a number, and for the same one.
NAMES = [f"{1000268201 + 7919 * n}_{n * 2654435761 % 2**40:010x}.jpg" for n in range(38)]
NAMES = sorted([*NAMES, "1001773457_577c3a7d05.jpg", "1002674143_1b742ab4b5.jpg"])
CAPTIONS_OF = {
    name: [CAPTIONS[(n + k) % len(CAPTIONS)] for k in range(1 + n % 5)]
    for n, name in enumerate(NAMES)
}


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def configured(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "a.yaml"
    path.write_text(f"dataset: custom\nimage_root: {folder}\nann_root: {folder}\n")
    return lambda **keys: load_config(path, flags=keys)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_as_karpathys_file_is(folder, name, tmp_path_factory):
    path = tmp_path_factory.mktemp("karpathy") / "dataset.json"
    path.write_text(json.dumps(karpathy(CAPTIONS_OF, dict.fromkeys(NAMES, "train"))))
    written = folder / write_captions(folder, name, CAPTIONS_OF)
    expected, found = (read_annotations(each) for each in (path, written))
    assert [s[:2] for s in found] == [s[:2] for s in expected] and len(found) == 40
    of_images = read_references(written)
    assert list(of_images.values()) == list(CAPTIONS_OF.values())
    images = find_images(folder, written, of_images)
    assert list(images.values()) == [folder / image for image in NAMES]
    if written.is_file():  # as Windows has it
        content = written.read_text("utf-8").replace("\n", "\r\n").encode("utf-8-sig")
        other = path.with_name(f"A{written.suffix.upper()}")
        other.write_bytes(content)
        assert read_annotations(other) == found


def test_shares_go_by_the_names_and_the_seed_alone(folder, configured):
    split = {"val": 0.1, "test": 0.1}

    def test_images(captions, **keys):
        train_file = write_captions(folder, "captions.txt", captions)
        config = configured(train_file=train_file, split=split, **keys)
        parts = [{s.image for s in read_split(config, part)} for part in ("train", "val", "test")]
        assert [len(part) for part in parts] == [32, 4, 4] and len(set.union(*parts)) == 40
        return parts[2]

    found = test_images(CAPTIONS_OF)
    shuffled = random.Random(5).sample(sorted(CAPTIONS_OF.items()), len(CAPTIONS_OF))
    assert test_images(dict(shuffled)) == found != test_images(CAPTIONS_OF, seed=1)
    in_folder = test_images({f"photos/{name}": texts for name, texts in shuffled})
    assert in_folder == {f"photos/{name}" for name in found}
    # As the page says, which any other program can follow.
    order = sorted(
        NAMES, key=lambda n: hashlib.blake2b(f"split {n} 42".encode(), digest_size=8).digest()
    )
    assert found == set(order[4:8])
    divided = configured(split=split, seed=7).split  # a resumed run has it with its seed
    assert configured(split=divided, seed=8).split == divided == {**split, "seed": 7}


def test_lists_name_the_photos_of_splits_and_the_rest_trains(folder, configured, capsys):
    train_file = write_captions(folder, "captions.txt", CAPTIONS_OF)
    (folder / "val.txt").write_text(f"./{NAMES[5][:-4]}\n")  # Flickr30k's lists have no .jpg
    config = configured(train_file=train_file, split={"val": "val.txt"})
    found = read_split(config, "val")
    assert references(config, "val", found) == {NAMES[5]: CAPTIONS_OF[NAMES[5]]}
    assert len(read_split(config, "train")) == 39
    with pytest.raises(UserError, match="split divides train_file, but has no test: add it"):
        read_split(config, "test")
    (folder / "train.txt").write_text("".join(f"{name}\n" for name in NAMES[10:]))
    config = configured(train_file=train_file, split={"val": "val.txt", "train": "train.txt"})
    assert [len(read_split(config, name)) for name in ("train", "val")] == [30, 1]
    assert "split: 9 of 40 photos are in no list" in capsys.readouterr().err
    for test, message in {
        "none.jpg\nother.jpg\n": "2 of 2 photos have no captions in train_file, the",
        NAMES[5]: f"{NAMES[5]} is also in the list of val: a ",
        "\n": "split: test has none of the 40 photos: assign some to test",
    }.items():
        (folder / "test.txt").write_text(test)
        config = configured(train_file=train_file, split={"val": "val.txt", "test": "test.txt"})
        with raises_line(UserError, message):
            read_split(config, "train")


NOT_SHARES = [
    *({"val": 0.5, "test": 0.5}, {"test": 0.5}, {"val": 0.5, "test": "a.txt"}),
    {"val": "a.txt", "dev": "b.txt"},
]


def test_a_division_that_is_none_is_one_line(configured):
    for split in NOT_SHARES:
        with raises_line(UserError, "it must be shares of the photos, such as {val: 0.05, test"):
            configured(split=split)
    with raises_line(UserError, "test_file is set: unset one of them"):
        configured(split={"val": 0.1}, test_file="a.json")


@pytest.mark.parametrize("part", ["folders", "coco", "link"])
def test_photos_in_folders_of_their_own_are_found(folder, configured, tmp_path_factory, part):
    """As folders with metadata, as COCO's files of 2017, and beside a link to image_root."""
    places, keys = {"train": NAMES[:30], "val": NAMES[30:]}, {}
    if part == "link":  # `..` behind a link leads to the folder of its target
        (folder / "images").mkdir()
        keys = {"image_root": str(tmp_path_factory.mktemp("links") / "images")}
        Path(keys["image_root"]).symlink_to(folder / "images")
    for split, names in places.items():
        own = {name: CAPTIONS_OF[name] for name in names}
        place = f"{split}2017" if part == "coco" else split
        (folder / place).mkdir()
        for name in names:
            (folder / name).rename(folder / place / name)
        if part == "coco":
            keys[f"{split}_file"] = f"captions_{place}.json"
            (folder / keys[f"{split}_file"]).write_text(json.dumps(coco(own)))
        else:
            keys[f"{split}_file"] = split
            write_captions(folder / split, "metadata.jsonl", own)
    config = configured(**keys)
    for split, names in places.items():
        samples = read_split(config, split)
        assert [Path(sample.image).name for sample in samples] == names
        assert all(Path(config.image_root, sample.image).is_file() for sample in samples)
