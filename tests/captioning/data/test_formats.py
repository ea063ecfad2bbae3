"""Captions as people have them: each format gives what Karpathy's file of the same photos gives."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioning.config import load_config
from captioning.data import described_division, read_annotations, read_split, references
from captioning.data.caption_files import read_references
from captioning.metrics.image_files import find_images
from captioning.runtime.errors import UserError
from tests.captioning.data.caption_formats import (
    FORMATS,
    SPLITS,
    captions_txt,
    coco,
    karpathy,
    write_captions,
    write_lists,
)
from tests.programs import raises_line

CAPTIONS = (
    "A black dog runs across the grass .",
    "A dog shakes its head near the shore , a red ball next to it .",
    '"Dogs only" , says a sign',
    'A man in a " Life is good " shirt',
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


@pytest.fixture
def of_karpathy(configured, tmp_path_factory):
    """Return the configuration of Karpathy's file."""
    path = tmp_path_factory.mktemp("karpathy") / "dataset.json"
    path.write_text(json.dumps(karpathy(CAPTIONS_OF, SPLIT_OF)))
    return configured(**{f"{split}_file": str(path) for split in SPLITS})


def captions_of(samples):
    return [(sample.image, sample.captions) for sample in samples]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_with_lists_trains_on_what_karpathys_file_trains(
    folder, configured, of_karpathy, name
):
    train_file = write_captions(folder, name, CAPTIONS_OF)
    config = configured(train_file=train_file, split=write_lists(folder, SPLIT_OF))
    for split in SPLITS:
        expected, found = (read_split(each, split) for each in (of_karpathy, config))
        assert captions_of(found) == captions_of(expected) != []
        truth = [list(sample.captions) for sample in expected]
        assert list(references(config, split, found).values()) == truth
    assert described_division(config) == f"split of {train_file}: 32 train, 4 val, 4 test photos"


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_references_and_the_photos_of_its_captions(folder, name):
    path = folder / write_captions(folder, name, CAPTIONS_OF)
    found = read_references(path)
    assert list(found.values()) == list(CAPTIONS_OF.values())
    images = find_images(folder, path, found)
    assert list(images.values()) == [folder / image for image in CAPTIONS_OF]


def test_shares_go_by_the_names_and_the_seed_alone(folder, configured):
    def test_images(captions, **keys):
        train_file = write_captions(folder, "captions.txt", captions)
        split = {"val": 0.1, "test": 0.1}
        return {
            s.image
            for s in read_split(configured(train_file=train_file, split=split, **keys), "test")
        }

    found = test_images(CAPTIONS_OF)
    config = configured(train_file="captions.txt", split={"val": 0.1, "test": 0.1})
    parts = [read_split(config, split) for split in SPLITS]
    assert [len(part) for part in parts] == [32, 4, 4]
    assert sorted(sample.image for part in parts for sample in part) == NAMES
    shuffled = random.Random(5).sample(sorted(CAPTIONS_OF.items()), len(CAPTIONS_OF))
    assert test_images(dict(shuffled)) == found
    assert test_images({f"photos/{n}": texts for n, texts in shuffled}) == {
        f"photos/{n}" for n in found
    }
    assert test_images(CAPTIONS_OF, seed=1) != found
    # As the page says, which any other program can follow.
    order = sorted(
        NAMES, key=lambda n: hashlib.blake2b(f"split {n} 42".encode(), digest_size=8).digest()
    )
    assert found == set(order[4:8])


def test_the_rest_trains_where_lists_leave_it(folder, configured):
    train_file = write_captions(folder, "captions.txt", CAPTIONS_OF)
    (folder / "val.txt").write_text(f"{NAMES[5][:-4]}\n")  # Flickr30k's lists have no .jpg
    split = {"val": "val.txt"}
    config = configured(train_file=train_file, split=split)
    assert [sample.image for sample in read_split(config, "val")] == [NAMES[5]]
    assert len(read_split(config, "train")) == 39
    with pytest.raises(UserError, match="split divides train_file, but has no test: add it"):
        read_split(config, "test")
    (folder / "train.txt").write_text("".join(f"{name}\n" for name in NAMES[10:]))
    config = configured(train_file=train_file, split={**split, "train": "train.txt"})
    assert described_division(config).endswith("30 train, 1 val photos, 9 in no list")


@pytest.mark.parametrize(
    ("test", "val", "message"),
    [
        ("none.jpg\nother.jpg\n", NAMES[0], "2 of 2 photos have no captions in train_file, the"),
        (NAMES[1], f"{NAMES[2]}\n{NAMES[1]}\n", f"{NAMES[1]} is also in the list of val: a "),
        ("\n", NAMES[0], "split: test has none of the 40 photos: assign some to test"),
        (None, NAMES[0], "cannot be read: No such file"),
    ],
)
def test_lists_that_do_not_fit_are_one_line(folder, configured, test, val, message):
    for name, text in {"val.txt": val, "test.txt": test}.items():
        if text is not None:
            (folder / name).write_text(text)
    train_file = write_captions(folder, "captions.txt", CAPTIONS_OF)
    config = configured(train_file=train_file, split={"val": "val.txt", "test": "test.txt"})
    with raises_line(UserError, message):
        read_split(config, "train")


def test_photos_that_are_not_there_are_told_before_training(folder, configured):
    (folder / "captions.txt").write_text(captions_txt({**CAPTIONS_OF, "a.jpg.1": ["a dog"]}))
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
    ({"val": 0.0}, {}, SHARES),
    ({"val": "a.txt", "dev": "b.txt"}, {}, SHARES),
    ({"val": 0.1, "seed": 0.5}, {}, SHARES),
    ("0.05", {}, "split: found '0.05'; input should be a mapping"),
    ({"val": 0.1}, {"test_file": "a.json"}, "test_file is set: unset one of them"),
    ({"val": 0.1}, {"train_captions": "a.csv", "train_file": "a.csv"}, "train_captions is train_f"),
    ({"val": 0.1}, {"train_file": "a.tar"}, "split needs annotations, and train_file"),
]


@pytest.mark.parametrize(("split", "keys", "message"), DIVISIONS)
def test_a_division_that_is_none_is_one_line(configured, split, keys, message):
    with raises_line(UserError, message):
        configured(split=split, **keys)


def test_the_seed_of_a_division_stays_with_it(configured):
    split = configured(split={"val": 0.1}, seed=7).split
    assert configured(split=split, seed=8).split == split == {"val": 0.1, "seed": 7}


def test_folders_within_the_images_folder_can_be_the_splits(folder, configured):
    for split in SPLITS:
        (folder / split).mkdir()
    for name, split in SPLIT_OF.items():
        (folder / name).rename(folder / split / name)
    for split in SPLITS:
        own = {name: CAPTIONS_OF[name] for name in NAMES if SPLIT_OF[name] == split}
        write_captions(folder / split, "metadata.jsonl", own)
    config = configured(**{f"{split}_file": split for split in SPLITS})
    for split in SPLITS:
        samples = read_split(config, split)
        assert all((folder / sample.image).is_file() for sample in samples)
        assert references(config, split, samples) == read_references(folder / split)


def test_photos_of_cocos_files_of_2017_are_found_in_the_folders_of_their_names(folder, configured):
    parts = {"train2017": NAMES[:30], "val2017": NAMES[30:]}
    for part, names in parts.items():
        (folder / part).mkdir()
        for name in names:
            (folder / name).rename(folder / part / name)
        document = coco({name: CAPTIONS_OF[name] for name in names})
        (folder / f"captions_{part}.json").write_text(json.dumps(document))
    files = {"train_file": "captions_train2017.json", "val_file": "captions_val2017.json"}
    config = configured(**files)
    for split, (part, names) in zip(("train", "val"), parts.items()):
        expected = [(f"{part}/{name}", tuple(CAPTIONS_OF[name])) for name in names]
        assert captions_of(read_split(config, split)) == expected
    config = configured(**files, image_root=str(folder / "val2017"))
    assert [sample.image for sample in read_split(config, "val")] == NAMES[30:]


def test_photos_beside_a_link_to_the_images_are_found(folder, configured, tmp_path):
    """`..` behind a link leads to the folder of its target."""
    (folder / "photos").mkdir()
    for name in NAMES:
        (folder / name).rename(folder / "photos" / name)
    write_captions(folder / "photos", "metadata.jsonl", CAPTIONS_OF)
    (tmp_path / "links").mkdir()
    (folder / "images").mkdir()
    (tmp_path / "links" / "images").symlink_to(folder / "images")
    config = configured(image_root=str(tmp_path / "links" / "images"), train_file="photos")
    for sample in read_split(config, "train"):
        assert Path(config.image_root, sample.image).is_file()


def test_photos_without_a_text_beside_them_are_counted_in_one_line(folder):
    write_captions(folder, "folder", CAPTIONS_OF)
    (folder / NAMES[4]).with_suffix(".txt").unlink()
    message = rf"1 of 40 photos have no \.txt file with captions, the first is .*{NAMES[4]}"
    with pytest.raises(UserError, match=message):
        read_annotations(folder)
