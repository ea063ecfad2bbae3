"""Training images beside the transform that they stand for, made of Pillow and torchvision."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from captioning.config import load_config
from captioning.data import (
    MEAN,
    STD,
    evaluation_transform,
    load_image,
    normalise,
    training_transform,
)
from captioning.data.augmentation import NOISE
from captioning.data.image import open_image
from captioning.data.randaugment import OPERATIONS, rand_augment
from captioning.models.build import preprocessing_of
from captioning.runtime.errors import UserError

CROP = {"scale": (0.5, 1.0), "interpolation": InterpolationMode.BICUBIC}
SCENE = np.random.default_rng(3).integers(0, 256, (30, 40, 3), dtype=np.uint8)
PHOTO = Image.fromarray(SCENE).resize((64, 48), Image.BICUBIC)


def scene(width, height):
    return Image.fromarray(SCENE).resize((width, height), Image.BICUBIC)


@pytest.fixture
def without_randaugment(monkeypatch):
    monkeypatch.setattr("captioning.data.augmentation.rand_augment", lambda image, _: image)


def drawn(transform, image, seed):
    torch.manual_seed(seed)
    return np.asarray(transform(image)).astype(int)


def test_normalised_pixels_are_torchvisions_to_the_bit():
    pixels = torch.randint(256, (3, 20, 24, 3), dtype=torch.uint8)
    one = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    expected = torch.stack([one(image.numpy()) for image in pixels])
    result = normalise(pixels)
    assert torch.equal(result, expected)
    assert result.is_contiguous()


def test_without_augmentation_the_image_is_that_of_evaluation(tmp_path):
    scene(500, 400).save(tmp_path / "photo.jpg")
    with open_image(tmp_path / "photo.jpg") as image:
        pixels = training_transform(48, "none")(image)
    expected = evaluation_transform(48)(load_image(tmp_path / "photo.jpg"))
    assert torch.equal(normalise(pixels[None])[0], expected)


def crop_and_flip(*more):
    return transforms.Compose(
        [transforms.RandomResizedCrop(64, **CROP), transforms.RandomHorizontalFlip(), *more]
    )


@pytest.mark.parametrize("size", [(70, 50), (300, 200)])
def test_the_crop_and_the_flip_are_pillows_up_to_rounding(without_randaugment, size):
    for seed in range(12):
        expected = drawn(crop_and_flip(), scene(*size), seed)
        state = torch.get_rng_state()
        differences = np.abs(drawn(training_transform(64), scene(*size), seed) - expected)
        assert differences.max() <= 2
        assert (differences > 0).mean() < 0.02
        assert torch.equal(torch.get_rng_state(), state)


def test_randaugment_comes_last_and_draws_on():
    plain = crop_and_flip(partial(rand_augment, operations=OPERATIONS))
    for seed in range(20):
        expected = drawn(plain, scene(90, 80), seed)
        assert np.abs(drawn(training_transform(64), scene(90, 80), seed) - expected).mean() < 1


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_a_large_jpeg_is_decoded_at_a_fraction(tmp_path, without_randaugment, reduction):
    """The file as it is decoded whole, cut where the small one is and resized by Pillow."""
    path, size = tmp_path / "photo.jpg", 51
    scene(150 * reduction, 100 * reduction).save(path, quality=95)
    for seed in range(8):
        with open_image(path) as image:
            pixels = drawn(training_transform(size), image, seed)
            assert image.size == (150, 100)
        torch.manual_seed(seed)
        top, left, height, width = (
            v // reduction * reduction
            for v in transforms.RandomResizedCrop.get_params(
                load_image(path), CROP["scale"], (3 / 4, 4 / 3)
            )
        )
        crop = load_image(path).crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((size, size), Image.BICUBIC)).astype(int)
        if torch.rand(1) < 0.5:
            expected = expected[:, ::-1]
        assert np.abs(pixels - expected).mean() < 2.5


def test_a_file_that_breaks_off_is_named(tmp_path):
    path = tmp_path / "broken.jpg"
    scene(400, 300).save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with open_image(path) as image, pytest.raises(UserError, match=r"broken\.jpg: not a readable"):
        training_transform(16)(image)


def weak(strength, seed, image=PHOTO, size=32):
    torch.manual_seed(seed)
    return training_transform(size, "weak", strength)(image)


def test_at_strength_0_it_is_the_image_of_evaluation_or_its_mirror():
    expected = evaluation_transform(32)(PHOTO)
    mirrored = 0
    for seed in range(60):
        found = normalise(weak(0.0, seed)[None])[0]
        flipped = torch.equal(found, expected.flip(2))
        assert flipped or torch.equal(found, expected)
        mirrored += flipped
    assert 18 < mirrored < 42


def test_the_noise_of_an_image_has_the_strengths_deviation():
    """Of a grey one, whose saturation and contrast say nothing; its brightness is one factor."""
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    for strength in (0.05, 0.2):
        pixels = weak(strength, 1, grey, 64).double()
        assert pixels.std().item() == pytest.approx(strength * NOISE, rel=0.05)
        assert 128 * (1 - strength) - 1 < pixels.mean() < 128 * (1 + strength) + 1


def test_colours_are_pillows_and_the_hue_stays(monkeypatch):
    """A red of equal green and blue keeps them equal, whatever else becomes of it."""
    monkeypatch.setattr("captioning.data.augmentation.NOISE", 0.0)
    found = []
    for seed in range(40):
        pixels = weak(0.3, seed, Image.new("RGB", (8, 8), (200, 80, 80)), 8)[0, 0].tolist()
        red, green, blue = pixels
        assert red > green and abs(green - blue) <= 1
        found.append((red, green))
    assert len(set(found)) > 30


def test_a_configuration_sets_the_weak_augmentation(scenes_config):
    settings = ["augmentation=weak", "augmentation_strength=0.2"]
    prepare = preprocessing_of(load_config(scenes_config, settings)).training
    size = load_config(scenes_config).image_size
    torch.manual_seed(3)
    found = prepare(PHOTO)
    assert torch.equal(found, weak(0.2, 3, PHOTO, size))
