"""The data set of drawn scenes: the same from the same seed, in the format that is read."""

import hashlib
import json
from unittest.mock import DEFAULT, Mock

import pytest
from PIL import Image

from captioning.config import load_config
from captioning.data.annotations import read_annotations
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from captioning.scenes import make
from captioning.scenes.annotators import ANNOTATORS
from captioning.scenes.make import SIDE, make_scenes
from captioning.scenes.world import read_scenes
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
    line = "contains something other than the scenes of seed"
    for splits in ({**SPLITS, "val": 1}, SPLITS):
        with unchanged(folder), raises_line(UserError, line):
            make_scenes(folder, 0, splits)
        (folder / "scenes.json").unlink(missing_ok=True)
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
