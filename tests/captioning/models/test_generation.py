"""Captions of many images: in order, each image once, unreadable images left out."""

import shutil
from unittest.mock import Mock

import pytest
import torch

from captioning.config import load_config
from captioning.data.sources import read_split
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.models.prompts import scored_lists
from decoding import Generated


@pytest.fixture
def caption(scenes_config, scenes, tmp_path):
    """Return a function that captions the test split; images that are named are damaged first."""
    root = shutil.copytree(scenes, tmp_path / "scenes")

    def call(*overrides, damaged=()):
        for name in damaged:
            (root / "images" / name).write_bytes(b"not an image")
        config = load_config(scenes_config, [f"image_root={root}", *overrides])
        captioner, _ = captioner_from(config, None)
        samples = read_split(config, "test")
        return caption_images(captioner, samples, config, torch.device("cpu"), "captions")

    return call


def test_images_that_cannot_be_read_have_no_caption(caption, capsys):
    damaged = ["scene_000029.png", "scene_000033.png"]
    results = caption("skip_bad_images=true", "num_workers=2", "eval_batch_size=3", damaged=damaged)
    assert [result["image_id"] for result in results] == [30, 31, 32, 34, 35]
    assert all(isinstance(result["caption"], str) for result in results)
    assert "2 of 7 images could not be read" in capsys.readouterr().err


def test_captions_that_were_cut_are_marked_and_counted(caption, capsys, monkeypatch):
    """A caption was cut if it has none of the end tokens."""
    ids = torch.tensor([[[5, 6, 2, -1]], [[5, 6, 5, 6]], [[5, 9, -1, -1]]])
    lists = scored_lists(Generated([["a"], ["b"], ["c"]], ids, torch.zeros(3, 1)), [2, 9])
    made = Mock(side_effect=lambda _, __, images, *___: lists[: len(images)])
    monkeypatch.setattr("captioning.models.generation.caption_lists", made)
    found = [result.get("cut") for result in caption("eval_batch_size=3")]
    assert found == [None, True, None, None, True, None, None]
    assert "2 of 7 captions were cut at max_length" in capsys.readouterr().err


@pytest.mark.slow
def test_compiled_captions_are_the_same(caption, quick_compiler):
    """With a smaller last batch, 7 images in batches of 3."""
    compiled = caption("eval_batch_size=3", "compile=true")
    assert quick_compiler.frame_count > 1  # the encoder and the step
    assert compiled == caption("eval_batch_size=3")
