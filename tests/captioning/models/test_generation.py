"""Captions of many images: in order, each image once, unreadable images left out."""

import shutil

import pytest
import torch

from captioning.config import load_config
from captioning.data import read_split
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images


@pytest.fixture
def caption(scenes_config, scenes, tmp_path):
    """Return a function that captions the test split from a copy of the images, some damaged."""

    def call(*overrides, damaged=()):
        root = tmp_path / "scenes"
        shutil.copytree(scenes, root, dirs_exist_ok=True)
        for name in damaged:
            (root / "images" / name).write_bytes(b"not an image")
        config = load_config(scenes_config, [f"image_root={root}", *overrides])
        captioner, _ = captioner_from(config, None)
        samples = read_split(config, "test")
        return caption_images(captioner, samples, config, torch.device("cpu"), "captions")

    return call


def test_images_that_cannot_be_read_have_no_caption(caption, capsys):
    damaged = ["scene_000029.png", "scene_000033.png"]
    settings = ["skip_bad_images=true", "num_workers=2", "eval_batch_size=3"]
    results = caption(*settings, damaged=damaged)
    assert [result["image_id"] for result in results] == [30, 31, 32, 34, 35]
    assert all(isinstance(result["caption"], str) for result in results)
    assert "2 of 7 images could not be read" in capsys.readouterr().err


def test_no_worker_stays_when_it_breaks_off(caption, no_child_stays, monkeypatch):

    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("BLIP.blip.BlipCaptioner.generate_details", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        caption("num_workers=1", "eval_batch_size=1")
    no_child_stays()


@pytest.mark.slow
def test_compiled_captions_are_the_same(caption, quick_compiler):
    """With a smaller last batch, 7 images in batches of 3."""
    compiled = caption("eval_batch_size=3", "compile=true")
    assert quick_compiler.frame_count > 1  # the encoder and the step
    assert compiled == caption("eval_batch_size=3")


def test_a_checkpoints_captioner_is_the_checkpoints_with_none_drawn(scenes_config, tmp_path):
    config = load_config(scenes_config, ["seed=3"])
    made_up, _ = captioner_from(config, None)
    torch.save({"model": made_up.state_dict()}, tmp_path / "made_up.pth")
    loaded, _ = captioner_from(config, str(tmp_path / "made_up.pth"))
    state = torch.get_rng_state()
    assert torch.equal(state, torch.manual_seed(3).get_state())
    for key, value in made_up.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
