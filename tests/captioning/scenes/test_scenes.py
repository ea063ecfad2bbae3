"""Drawn scenes: the same from the same seed; the facts of captions, counted by hand."""

import hashlib
import json
import random
from statistics import mean
from unittest.mock import DEFAULT, Mock

import pytest
from PIL import Image

from captioning.config import load_config
from captioning.data.annotations import read_annotations
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from captioning.scenes import make
from captioning.scenes.annotators import ANNOTATORS, describe_all
from captioning.scenes.facts import mark_words, max_true_facts, read_caption, true_facts
from captioning.scenes.make import SIDE, make_scenes, random_scene
from captioning.scenes.world import Scene, Thing, read_scenes
from tests.programs import raises_line, refused, run_program, unchanged

SPLITS = {"train": 6, "val": 2, "test": 3}


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_the_seed_alone_decides_photos_and_captions(tmp_path, monkeypatch):
    monkeypatch.setattr("captioning.scenes.__main__.SPLITS", SPLITS)
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        made = run_program("captioning.scenes", "--output", tmp_path / name, "--seed", seed)
        assert made.code == 0 and "is drawn" in made.err
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    captions = (tmp_path / "a" / "scenes_train.json").read_bytes()
    assert hashlib.sha256(captions).hexdigest()[:12] == "6c29099b3bb9"  # of every version
    with unchanged(tmp_path / "a"):
        again = ("captioning.scenes", "--output", tmp_path / "a", "--seed")
        assert "exists already" in run_program(*again, 1).err
        refused(*again, 3, part="contains something other than the scenes of seed")


def test_splits_are_annotations_with_five_captions_an_image(tmp_path, scenes_config):
    make_scenes(tmp_path / "s", 0, SPLITS)
    scenes = read_scenes(tmp_path / "s" / "scenes.json")
    vocabulary = (tmp_path / "s" / "vocab.txt").read_text().split()
    assert len(vocabulary) == len(set(vocabulary))
    samples = []
    for split in SPLITS:
        samples += read_annotations(tmp_path / "s" / f"scenes_{split}.json")
    assert sorted(sample.image_id for sample in samples) == sorted(scenes) == [*range(11)]
    for sample in samples:
        assert Image.open(tmp_path / "s" / sample.image).size == (SIDE, SIDE)
        assert len(sample.captions) == len(ANNOTATORS) == 5
    captions = [text.split() for sample in samples for text in sample.captions]
    assert set().union(*captions) <= set(vocabulary)
    path = tmp_path / "s" / "vocab_pieces.txt"
    pieces = [f"##{word}" for word in sorted({first for first, *_ in captions})]
    assert path.read_text().split() == [*vocabulary, *pieces]
    settings = load_config(scenes_config, ["first_token_shift=true", f"tokenizer={path}"])
    assert captioner_from(settings, None)[0].shift is not None


def test_a_folder_of_other_scenes_is_refused_and_stays(tmp_path):
    folder = tmp_path / "s"
    make_scenes(folder, 0, SPLITS)
    (folder / "scenes.json").unlink()
    with unchanged(folder), raises_line(UserError, "contains something other than the scenes of"):
        make_scenes(folder, 0, SPLITS)
    for content in ({"annotations": []}, {"made_from": 1, "scenes": {"x": [1]}}):
        (tmp_path / "file").write_text(json.dumps(content))
        with raises_line(UserError, "file: does not describe scenes"):
            read_scenes(tmp_path / "file")
    with raises_line(UserError, "cannot write ", "file/scenes: Not a directory"):
        make_scenes(tmp_path / "file" / "scenes", 0, SPLITS)


def test_a_drawing_that_was_stopped_is_begun_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        draw = Mock(wraps=make.draw, side_effect=[DEFAULT] * 3 + [KeyboardInterrupt])
        patch.setattr(make, "draw", draw)
        make_scenes(tmp_path / "s", 0, SPLITS)
    assert not (tmp_path / "s").exists()
    (tmp_path / "empty").mkdir()  # is filled
    for name in ("s", "empty"):
        assert make_scenes(tmp_path / name, 0, SPLITS)
    assert digest(tmp_path / "s") == digest(tmp_path / "empty")


def test_paragraphs_have_100_to_200_words_and_state_no_wrong_ground(tmp_path):
    make_scenes(tmp_path / "s", 0, {"train": 200}, paragraphs=True)
    scenes = read_scenes(tmp_path / "s" / "scenes.json")
    for sample in read_annotations(tmp_path / "s" / "scenes_train.json"):
        first, second = sample.captions
        assert 100 <= len(first.replace(" .", "").split()) <= 200
        assert sorted(first.split()) == sorted(second.split())
        assert f"on the {scenes[sample.image_id].ground} ." in first


RED = Thing("circle", "crimson", "huge", column=0, row=0)
BLUE = Thing("star", "azure", "tiny", column=2, row=1)
SCENE = Scene("sand", (RED, BLUE))
CENTRE = Scene("snow", (Thing("heart", "plum", "small", column=1, row=1),))


@pytest.mark.parametrize(
    ("caption", "true", "stated"),
    [
        ("", 0, 0),
        ("a crimson circle", 3, 3),  # red and dark
        ("a coral circle", 2, 3),  # red, but light
        ("a tiny circle", 2, 3),  # rather the tiny star than the huge circle
        ("a circle in the upper left corner", 3, 3),
        ("a star in the middle", 1, 2),  # its row is the middle one, its column is not
        ("two shapes", 1, 1),
        ("a star on the beach on the beach", 2, 2),  # said twice, counted once
        ("a star on the grass", 1, 2),
        ("a star to the right of a circle", 3, 3),
        ("a circle next to a star", 2, 3),  # two columns apart
        ("a circle above", 1, 1),  # what it is above is not said
        ("a red star and a blue circle", 2, 4),
        ("a red", 1, 1),  # cut off
        ("a circle and a circle", 1, 2),  # there is one
        ("a circle and a star and an object", 2, 3),  # there are two things
        ("a shape and a circle", 2, 2),  # the shape is the star
        ("left a circle", 1, 1),  # a place of nothing
        ("A Crimson circle.", 3, 3),
        (" and ".join(["a red circle", "a blue star"] * 10), 4, 40),  # read in time
        ("a heart in the centre", 2, 2),  # of CENTRE
    ],
)
def test_a_caption_states_the_facts_that_were_counted_by_hand(caption, true, stated):
    scene = CENTRE if "heart" in caption else SCENE
    statement = read_caption(caption)
    assert (len(true_facts(statement, scene)), len(statement.facts())) == (true, stated)
    assert true <= max_true_facts(statement.facts(), scene) <= stated


def test_the_words_of_facts_are_marked_as_right_or_wrong():
    marked = dict(mark_words("a coral disc and a zebra on the lawn", SCENE))
    facts = {"coral": False, "disc": True, "lawn": False}  # a zebra is no word of this world
    assert marked == {**dict.fromkeys(["a", "and", "zebra", "on", "the"]), **facts}


def test_annotators_say_what_is_true_and_each_says_more_than_the_one_before():
    rng = random.Random(5)
    lengths, counts, sizes = [], [], set()
    for _ in range(300):
        scene = random_scene(rng)
        sizes.add(len(scene.things))
        assert len({(thing.column, thing.row) for thing in scene.things}) == len(scene.things)
        captions = describe_all(scene, rng)
        statements = list(map(read_caption, captions))
        assert all(true_facts(each, scene) == each.facts() for each in statements), captions
        lengths.append([len(caption.split()) for caption in captions])
        counts.append([len(each.facts()) for each in statements])
    assert sizes == {1, 2, 3}
    for by_annotator in ([mean(of_one) for of_one in zip(*said)] for said in (lengths, counts)):
        assert by_annotator == sorted(by_annotator)
        assert by_annotator[-1] > 2.5 * by_annotator[0]
