"""Drawn scenes: the same from the same seed, true to their captions, in the project's format."""

import hashlib

from PIL import Image

from captioning import scenes
from captioning.data import read_annotations


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_the_seed_decides_everything(tmp_path):
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        scenes.make_scenes(tmp_path / name, seed, {"train": 5, "val": 2})
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_captions_name_colours_that_are_in_the_picture(tmp_path):
    scenes.make_scenes(tmp_path / "s", 0, {"train": 30})
    samples = read_annotations(tmp_path / "s" / "scenes_train.json")
    assert len(samples) == 30 and all(len(sample.captions) == 5 for sample in samples)
    vocabulary = (tmp_path / "s" / "vocab.txt").read_text().split()
    for sample in samples:
        image = Image.open(tmp_path / "s" / sample.image)
        assert image.size == (scenes.SIDE, scenes.SIDE)
        colours = {colour for _, colour in image.getcolors()}
        for caption in sample.captions:
            words = caption.split()
            assert set(words) <= set(vocabulary)
            named = [scenes.COLOURS[word] for word in words if word in scenes.COLOURS]
            assert set(named) <= colours
            grounds = [scenes.GROUNDS[word] for word in words if word in scenes.GROUNDS]
            assert set(grounds) <= colours


def test_what_is_there_is_left_alone(tmp_path, capsys):
    output = tmp_path / "data" / "scenes"
    output.parent.mkdir()
    for _ in range(2):
        assert scenes.main(["--output", str(output)]) == 0
    shown = capsys.readouterr().err
    assert "drew 720 scenes" in shown and "is there already" in shown
    assert len(list((output / "images").iterdir())) == 720
