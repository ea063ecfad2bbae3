"""Captions in every format train as Karpathy's file does; and data is divided in splits."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioning.config import load_config
from captioning.data import described_division, read_split, references
from captioning.data.caption_files import read_references
from captioning.metrics.image_files import find_images
from captioning.runtime.errors import UserError
from tests.captioning.data.caption_formats import (
    FORMATS,
    SPLITS,
    as_csv,
    coco,
    karpathy,
    write_captions,
)
from tests.programs import raises_line

CAPTIONS = (
    "A black dog runs across the grass .",
    "A dog shakes its head near the shore , a red ball next to it .",
    '"Dogs only" , says a sign',
    "4 dogs | a cat",
    "Ein Hund läuft 🐕",
)
# As Flickr8k has them: what some end in is taken for a number, and for the same one.
NAMES = [f"{1000268201 + 7919 * n}_{n * 2654435761 % 2**40:010x}.jpg" for n in range(40)]
NAMES = sorted([*NAMES[2:], "1001773457_577c3a7d05.jpg", "1002674143_1b742ab4b5.jpg"])
CAPTIONS_OF = {
    name: [CAPTIONS[(n + k) % len(CAPTIONS)] for k in range(1 + n % 5)]
    for n, name in enumerate(NAMES)
}
SPLIT_OF = {name: {7: "val", 8: "test"}.get(n % 10, "train") for n, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path):
    """Return a folder of photos of noise."""
    noise = np.random.default_rng(0)
    for name in NAMES:
        pixels = noise.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    return tmp_path


@pytest.fixture
def configured(folder, tmp_path_factory):
    """Return a function that makes a configuration of keys, the photos in `folder`."""
    path = tmp_path_factory.mktemp("config") / "a.yaml"
    path.write_text(f"dataset: custom\nimage_root: {folder}\nann_root: {folder}\n")
    return lambda **keys: load_config(path, flags=keys)


def captions_of(samples):
    return [(sample.image, list(sample.captions)) for sample in samples]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_with_lists_trains_on_what_karpathys_file_trains(
    folder, configured, name, tmp_path_factory
):
    path = tmp_path_factory.mktemp("karpathy") / "dataset.json"
    path.write_text(json.dumps(karpathy(CAPTIONS_OF, SPLIT_OF)))
    of_karpathy = configured(**{f"{split}_file": str(path) for split in SPLITS})
    train_file = write_captions(folder, name, CAPTIONS_OF)
    lists = {split: f"{split}.Images.txt" for split in SPLITS}
    for split, file in lists.items():
        (folder / file).write_text("".join(f"{n}\n" for n in NAMES if SPLIT_OF[n] == split))
    config = configured(train_file=train_file, split=lists)
    for split in SPLITS:
        expected, found = (read_split(each, split) for each in (of_karpathy, config))
        assert captions_of(found) == captions_of(expected) != []
        truth = [list(sample.captions) for sample in expected]
        assert list(references(config, split, found).values()) == truth
    assert described_division(config) == f"split of {train_file}: 32 train, 4 val, 4 test photos"
    found = read_references(folder / train_file)
    assert list(found.values()) == list(CAPTIONS_OF.values())
    images = find_images(folder, folder / train_file, found)
    assert list(images.values()) == [folder / image for image in CAPTIONS_OF]


def test_shares_go_by_the_names_and_the_seed_alone(folder, configured):
    split = {"val": 0.1, "test": 0.1}

    def test_images(captions, **keys):
        train_file = write_captions(folder, "captions.txt", captions)
        config = configured(train_file=train_file, split=split, **keys)
        return {sample.image for sample in read_split(config, "test")}

    found = test_images(CAPTIONS_OF)
    parts = [read_split(configured(train_file="captions.txt", split=split), s) for s in SPLITS]
    assert [len(part) for part in parts] == [32, 4, 4]
    assert sorted(sample.image for part in parts for sample in part) == NAMES
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


def test_the_rest_trains_where_lists_leave_it(folder, configured):
    train_file = write_captions(folder, "captions.txt", CAPTIONS_OF)
    (folder / "val.txt").write_text(f"./{NAMES[5][:-4]}\n")  # Flickr30k's lists have no .jpg
    config = configured(train_file=train_file, split={"val": "val.txt"})
    assert [sample.image for sample in read_split(config, "val")] == [NAMES[5]]
    assert len(read_split(config, "train")) == 39
    with pytest.raises(UserError, match="split divides train_file, but has no test: add it"):
        read_split(config, "test")
    (folder / "train.txt").write_text("".join(f"{name}\n" for name in NAMES[10:]))
    config = configured(train_file=train_file, split={"val": "val.txt", "train": "train.txt"})
    assert described_division(config).endswith("30 train, 1 val photos, 9 in no list")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("none.jpg\nother.jpg\n", "2 of 2 photos have no captions in train_file, the"),
        (NAMES[0], f"{NAMES[0]} is also in the list of val: a "),
        ("\n", "split: test has none of the 40 photos: assign some to test"),
        (None, "test.txt: no such file"),
    ],
)
def test_lists_that_do_not_fit_are_one_line(folder, configured, test, message):
    (folder / "val.txt").write_text(NAMES[0])
    if test is not None:
        (folder / "test.txt").write_text(test)
    train_file = write_captions(folder, "captions.txt", CAPTIONS_OF)
    config = configured(train_file=train_file, split={"val": "val.txt", "test": "test.txt"})
    with raises_line(UserError, message):
        read_split(config, "train")


def test_photos_that_are_not_there_are_told_before_training(folder, configured):
    (folder / "captions.txt").write_text(as_csv({**CAPTIONS_OF, "a.jpg.1": ["a dog"]}))
    keys = {"train_file": "captions.txt", "split": {"val": 0.05}}
    with pytest.raises(UserError, match=r"^1 of 41 photos do not exist, .*a\.jpg\.1: correct"):
        described_division(configured(**keys))
    assert "39 train, 2 val photos" in described_division(configured(**keys, skip_bad_images=True))


SHARES = "it must be shares"
DIVISIONS = [
    ({"val": 5}, {}, "split: found {'val': 5}; it must be shares of the photos, such"),
    ({"val": 0.5, "test": 0.5}, {}, SHARES),
    ({"test": 0.5}, {}, SHARES),
    ({"val": 0.5, "test": "a.txt"}, {}, SHARES),
    ({"val": 0.5, "train": 0.5}, {}, SHARES),
    ({"val": "a.txt", "dev": "b.txt"}, {}, SHARES),
    ({"val": 0.1, "seed": 0.5}, {}, SHARES),
    ({"val": 0.1}, {"test_file": "a.json"}, "test_file is set: unset one of them"),
    ({"val": 0.1}, {"train_captions": "a.csv", "train_file": "a.csv"}, "train_captions is train_f"),
    ({"val": 0.1}, {"train_file": "a.tar"}, "split needs annotations, and train_file"),
]


@pytest.mark.parametrize(("split", "keys", "message"), DIVISIONS)
def test_a_division_that_is_none_is_one_line(configured, split, keys, message):
    with raises_line(UserError, message):
        configured(split=split, **keys)


@pytest.mark.parametrize("part", ["folders", "coco", "link"])
def test_photos_in_folders_of_their_own_are_found(folder, configured, tmp_path, part):
    """As folders with metadata, as COCO's files of 2017, and beside a link to image_root."""
    places, keys = {"train": NAMES[:30], "val": NAMES[30:]}, {}
    if part == "link":  # `..` behind a link leads to the folder of its target
        (tmp_path / "links").mkdir()
        (folder / "images").mkdir()
        (tmp_path / "links" / "images").symlink_to(folder / "images")
        keys = {"image_root": str(tmp_path / "links" / "images")}
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
    if part == "coco":
        config = configured(**keys, image_root=str(folder / "val2017"))
        assert [sample.image for sample in read_split(config, "val")] == NAMES[30:]
