"""CHAIR on captions that were counted by hand, and on COCO's own where they are."""

import json
import re
from unittest import mock

import pytest

from BLIP.download import DownloadError
from captioning.data.annotations import read_annotations
from captioning.metrics.base import Settings, build_evaluators
from captioning.metrics.chair import SYNONYMS_SHA256, SYNONYMS_URL, read_objects
from captioning.metrics.objects_in_text import ObjectReader, read_synonyms, singulars
from captioning.runtime.errors import UserError
from tests.captioning.metrics.conftest import scored
from tests.programs import raises_line

pytest.importorskip("textblob", reason="chair needs TextBlob")

SYNONYMS = """\
person, man, baby, adult, passenger, people
dog, puppy, hound
bird, duck
bear
airplane, plane, jet
train
bus
motorcycle,  motor bike
bicycle, bike
hot dog
wine glass
cell phone, phone
chair, seat
toilet
tie, bow, bow tie
dining table, table
kite
"""


@pytest.fixture
def synonyms(tmp_path):
    path = tmp_path / "synonyms.txt"
    path.write_text(SYNONYMS)
    return path


# {caption: objects}, found by hand. Each mention counts.
NAMED = {
    "Two puppies and a Dog.": "dog, dog",
    "people watch men on bikes": "person, person, bicycle",
    "two wine glasses and a glass": "wine glass",
    "a baby bear and an adult dog, a baby animal": "bear, dog",
    "a baby next to a bear": "person, bear",
    "a passenger jet above a passenger train": "airplane, train",
    "a man in a bow tie with a bow": "person, tie, tie",
    "the seat of a toilet, a toilet seat": "toilet, toilet",
    "a kite above the train tracks at home plate": "kite",
    "a motor bike": "",  # the published file has a blank too many there
    "collies, a bus and two buses": "bus",  # the rules make the first one a bu
    "dining tables. hot dogs! hot, a dog": "dining table, hot dog, dog",
}


def test_a_caption_names_the_objects_that_were_found_by_hand(synonyms):
    reader = ObjectReader(read_synonyms(synonyms), singulars())
    found = {caption: [mention.object for mention in reader.mentions(caption)] for caption in NAMED}
    assert {caption: ", ".join(objects) for caption, objects in found.items()} == NAMED


INSTANCES = {
    "images": [{"id": i} for i in (1, 2, 3, 4)],
    "categories": [{"id": 18, "name": "dog"}, {"id": 2, "name": "bicycle"}],
    "annotations": [
        {"image_id": 1, "category_id": 18, "bbox": [1, 2, 3, 4], "segmentation": [[0.5]]},
        {"image_id": 1, "category_id": 18, "iscrowd": 0},
    ],
}
# Image 2 has a bicycle in the second file.
MORE = {**INSTANCES, "images": [], "annotations": [{"image_id": 2, "category_id": 2}]}


@pytest.fixture
def files(tmp_path, synonyms):
    for name, content in (("a.json", INSTANCES), ("b.json", MORE)):
        (tmp_path / name).write_text(json.dumps(content))
    return [f"{tmp_path}/a.json", f"{tmp_path}/b.json"]


def test_hallucinations_and_recall_are_those_counted_by_hand(files, synonyms, tmp_path):
    captions = {
        1: "a dog and a dog chase a cat under a kite",  # the cat is no object of these synonyms
        2: "a man on a bike",
        3: "nothing at all",
        4: "two birds and a puppy",
        5: "a man with a phone",
    }
    references = {1: ["a kite"], 2: ["people ride"], 3: ["a chair"], 4: ["ducks"], 5: ["a man"]}

    def chair(objects_file):
        options = {"objects_file": objects_file, "synonyms": str(synonyms)}
        return scored("chair", captions, references, **options)

    scores = chair(files)
    values = {name: estimate.value for name, estimate in scores.metrics.items()}
    # Of images 1 to 4: mentions dog, dog, kite | person, bicycle | - | bird, dog.
    # There: dog, kite | bicycle, person | chair | bird.
    expected = {"CHAIRs": 100 / 4, "CHAIRi": 100 / 7, "object_recall": 100 * 5 / 6}
    assert values == pytest.approx(expected)
    assert all(e.low <= e.value <= e.high and e.n == 4 for e in scores.metrics.values())
    rows = (0, 0, 100), (0, 0, 100), (0, None, 0), (100, 50, 100), (None,) * 3
    assert tuple(zip(*scores.per_caption.values())) == rows
    assert scores.details == {"hallucinated": [[], [], [], [("puppy", "dog")], None]}
    assert scores.settings["chair_unknown_images"] == 1
    mapped = tmp_path / "objects.json"
    mapped.write_text(json.dumps({"1": ["dog"], "2": ["bicycle"], "3": [], "4": []}))
    assert chair(str(mapped)) == scores


def test_the_published_synonyms_are_fetched_once_and_checked(files, tmp_path):
    settings, cached = Settings(cache_dir=tmp_path), tmp_path / "chair_synonyms.txt"

    def chair():
        [evaluator] = build_evaluators(["chair"], settings, objects_file=files)
        return evaluator

    with mock.patch("BLIP.download.download") as download:
        download.side_effect = lambda _, path, __: path.write_text(SYNONYMS)
        assert chair().synonyms["puppy"] == chair().synonyms["puppy"] == "dog"
        download.assert_called_once_with(SYNONYMS_URL, cached, SYNONYMS_SHA256)
        cached.unlink()
        download.side_effect = DownloadError(f"cannot fetch {SYNONYMS_URL}")
        with raises_line(UserError, "without a network, save"):
            chair()


def test_coco_captions_name_the_published_objects(shared_data):
    """Those of 416 photos, of which CHAIR's own objects are known."""
    words = read_synonyms(shared_data / "chair" / "synonyms.txt")
    assert len(set(words.values())) == 80
    objects = read_objects([shared_data / "chair" / "objects.json"], words)
    reader, found = ObjectReader(words, singulars()), {}
    for split in ("train", "val", "test"):
        for sample in read_annotations(shared_data / f"annotation/coco_karpathy_{split}.json"):
            image_id = str(int(re.search(r"\d+(?=\.jpg)", sample.image).group()))
            mentions = (m.object for text in sample.captions for m in reader.mentions(text))
            found.setdefault(image_id, set()).update(mentions)
    assert found.keys() == objects.keys() and len(found) == 416
    assert all(names <= objects[i] for i, names in found.items())
    assert sum(map(len, found.values())) > 600
