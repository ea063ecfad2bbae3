"""Flips, colours and grain: how far they go at a strength, and that nothing is cut off."""

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.config import load_config
from captioning.data import evaluation_transform, normalise, training_transform
from captioning.data.weak_augmentation import GRAIN
from captioning.models.build import preprocessing_of
from captioning.runtime.errors import UserError

SHAPES = np.random.default_rng(5).integers(40, 216, (6, 8, 3), dtype=np.uint8)
SCENE = Image.fromarray(SHAPES).resize((64, 48), Image.BICUBIC)


def drawn(strength, seed, image=SCENE, size=32):
    torch.manual_seed(seed)
    return training_transform(size, "weak", strength)(image)


def test_at_strength_0_it_is_the_image_of_evaluation_or_its_mirror():
    expected = evaluation_transform(32)(SCENE)
    mirrored = 0
    for seed in range(60):
        found = normalise(drawn(0.0, seed)[None])[0]
        flipped = torch.equal(found, expected.flip(2))
        assert flipped or torch.equal(found, expected)
        mirrored += flipped
    assert 18 < mirrored < 42


def test_the_noise_of_an_image_has_the_strengths_deviation():
    """Of a grey one, whose saturation and contrast say nothing; its brightness is one factor."""
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    for strength in (0.05, 0.2):
        pixels = drawn(strength, 1, grey, 64).double()
        assert pixels.std().item() == pytest.approx(strength * GRAIN, rel=0.05)
        assert 128 * (1 - strength) - 1 < pixels.mean() < 128 * (1 + strength) + 1


def test_brightness_is_spread_evenly_over_its_range(monkeypatch):
    monkeypatch.setattr("captioning.data.weak_augmentation.GRAIN", 0.0)
    grey = Image.new("RGB", (4, 4), (100, 100, 100))
    factors = [drawn(0.5, seed, grey, 4).double().mean().item() / 100 for seed in range(200)]
    assert 0.5 <= min(factors) < 0.55 and 1.45 < max(factors) <= 1.5
    assert np.mean(factors) == pytest.approx(1, abs=0.06)


def test_colours_are_pillows_and_the_hue_stays(monkeypatch):
    """A red of equal green and blue keeps them equal, whatever else becomes of it."""
    monkeypatch.setattr("captioning.data.weak_augmentation.GRAIN", 0.0)
    found = []
    for seed in range(40):
        pixels = drawn(0.3, seed, Image.new("RGB", (8, 8), (200, 80, 80)), 8)[0, 0].tolist()
        red, green, blue = pixels
        assert red > green and abs(green - blue) <= 1
        found.append((red, green))
    assert len(set(found)) > 30


def test_the_whole_image_is_there_and_the_generator_decides():
    corners = Image.new("RGB", (40, 40), (128, 128, 128))
    for x, y in ((0, 0), (39, 0), (0, 39), (39, 39)):
        corners.putpixel((x, y), (255, 255, 255))
    for seed in range(10):
        pixels = drawn(0.1, seed, corners, 40).double().mean(2)
        assert min(pixels[y, x] for x in (0, -1) for y in (0, -1)) > pixels[20, 20] + 40
        assert torch.equal(drawn(0.1, seed, corners, 40), drawn(0.1, seed, corners, 40))
    assert not torch.equal(drawn(0.1, 1, corners, 40), drawn(0.1, 2, corners, 40))


def test_a_configuration_has_it(scenes_config):
    weak = ["augmentation=weak", "augmentation_strength=0.2"]
    prepare = preprocessing_of(load_config(scenes_config, weak)).training
    size = load_config(scenes_config).image_size
    torch.manual_seed(3)
    found = prepare(SCENE)
    assert torch.equal(found, drawn(0.2, 3, SCENE, size))
    with pytest.raises(UserError, match=r"augmentation_strength: found 1\.5"):
        load_config(scenes_config, ["augmentation_strength=1.5"])
