"""Training images, compared with what Pillow and torchvision make, and with the original's."""

from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from captioning.config import load_config
from captioning.data import augmentation, image, randaugment
from captioning.data.augmentation import training_transform
from captioning.data.image import evaluation_transform, load_image, normalise
from captioning.models.build import preprocessing_of

SCENE = np.random.default_rng(3).integers(0, 256, (30, 40, 3), dtype=np.uint8)
# By operation, and by sign (1, then -1), the means of 3 x 4 blocks of `waves`, as the original's
# code makes them with OpenCV 4. Its other operations do nothing.
ORIGINAL = [
    "autocontrast 131 173 117 144 145 117 172 133 150 161 113 160",
    "equalize 116 172 98 133 135 97 170 119 141 157 92 155",
    "shear_x 121 155 100 131 115 114 157 114 153 123 107 145",
    "shear_x 117 153 110 124 133 103 144 132 126 151 112 123",
    "shear_y 111 158 129 98 135 96 135 155 131 150 109 124",
    "shear_y 120 147 108 139 124 121 144 103 138 127 117 150",
    "translate_x 114 155 117 113 135 100 145 134 127 153 105 129",
    "translate_x 133 146 100 135 115 116 154 115 146 131 105 145",
    "translate_y 128 146 104 137 110 122 151 104 151 125 108 154",
    "translate_y 102 155 119 110 148 99 142 138 124 149 105 133",
    "rotate 103 150 115 125 152 100 154 101 135 134 113 148",
    "rotate 144 140 102 109 101 115 148 149 152 143 110 116",
]


def scene(width, height):
    return Image.fromarray(SCENE).resize((width, height), Image.BICUBIC)


def drawn(transform, photo, seed):
    torch.manual_seed(seed)
    return np.asarray(transform(photo)).astype(int)


def test_images_of_evaluation_are_torchvisions_to_the_bit():
    resize = transforms.Resize((20, 20), InterpolationMode.BICUBIC)
    tensors = [transforms.ToTensor(), transforms.Normalize(image.MEAN, image.STD)]
    expected = transforms.Compose([resize, *tensors])(scene(50, 30))
    assert torch.equal(evaluation_transform(20)(scene(50, 30)), expected)


@pytest.mark.parametrize("number", range(len(ORIGINAL)))
def test_an_operation_gives_the_originals_image(monkeypatch, number):
    name, *expected = ORIGINAL[number].split()
    sign = -1 if ORIGINAL[number - 1].startswith(name) else 1
    monkeypatch.setattr(randaugment, "random_sign", lambda: sign)
    y, x = np.mgrid[:60, :80]
    waves = np.stack([np.sin(x / 9 + k) * np.cos(y / 7 + k) for k in range(3)], 2) * 100 + 128
    waves[0, 0] = 0  # autocontrast differs from the original's on images without zeros
    order = ["identity", "autocontrast", "brightness", "sharpness", "equalize", "shear_x"]
    order += ["shear_y", "translate_x", "translate_y", "rotate"]
    found = randaugment.OPERATIONS[order.index(name)](Image.fromarray(waves.astype(np.uint8)))
    means = np.asarray(found).reshape(3, 20, 4, 20, 3).mean((1, 3, 4)).ravel()
    np.testing.assert_allclose(means, np.array(expected, float), atol=1.5)


def test_two_operations_are_drawn_each_applied_half_of_the_time(monkeypatch):
    numbers = [lambda found, number=number: [*found, number] for number in range(10)]
    monkeypatch.setattr(randaugment, "OPERATIONS", numbers)
    applied = [randaugment.rand_augment([]) for _ in range(4000)]
    assert np.bincount([len(each) for each in applied]) == pytest.approx(
        [1000, 2000, 1000], abs=150
    )
    assert np.bincount(list(chain(*applied))) == pytest.approx([400] * 10, abs=100)


@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_crop_and_flip_are_pillows_of_a_photo_decoded_at_a_fraction(
    tmp_path, monkeypatch, reduction
):
    """RandAugment follows: it is drawn last, from the same random numbers."""
    path, size, states = tmp_path / ("a.png" if reduction == 1 else "a.jpg"), 51, []
    last = lambda photo: states.append(torch.get_rng_state()) or photo  # noqa: E731
    monkeypatch.setattr(augmentation, "rand_augment", last)
    scene(150 * reduction, 100 * reduction).save(path, quality=95)
    for seed in range(12):
        with image.open_image(path) as photo:
            pixels = drawn(training_transform(size), photo, seed)
            assert photo.size == (150, 100)
        torch.manual_seed(seed)
        whole = load_image(path)
        crop = transforms.RandomResizedCrop.get_params(whole, (0.5, 1.0), (3 / 4, 4 / 3))
        top, left, height, width = (v // reduction * reduction for v in crop)
        crop = whole.crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((size, size), Image.BICUBIC)).astype(int)
        if torch.rand(1) < 0.5:
            expected = expected[:, ::-1]
        assert torch.equal(states.pop(), torch.get_rng_state())
        differences = np.abs(pixels - expected)
        assert differences.mean() < (2.5 if reduction > 1 else 0.02)
        assert reduction > 1 or differences.max() <= 2


def test_without_strength_or_augmentation_it_is_the_image_of_evaluation_or_its_mirror():
    expected = evaluation_transform(32)(scene(64, 48))
    mirrored = 0
    for seed in range(60):
        torch.manual_seed(seed)
        weak, none = (training_transform(32, name)(scene(64, 48)) for name in ("weak", "none"))
        assert torch.equal(normalise(none[None])[0], expected)
        flipped = torch.equal(normalise(weak[None])[0], expected.flip(2))
        assert flipped or torch.equal(normalise(weak[None])[0], expected)
        mirrored += flipped
    assert 18 < mirrored < 42


def test_weak_noise_has_the_strengths_deviation():
    """On a grey image, where saturation and contrast change nothing and brightness is a factor."""
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    for strength in (0.05, 0.2):
        pixels = drawn(training_transform(64, "weak", strength), grey, 1)
        assert pixels.std() == pytest.approx(strength * augmentation.NOISE, rel=0.05)
        assert 128 * (1 - strength) - 1 < pixels.mean() < 128 * (1 + strength) + 1


def test_weak_colours_vary_and_the_hue_stays(scenes_config, monkeypatch):
    """A red whose green equals its blue keeps them equal; the configuration sets the strength."""
    monkeypatch.setattr(augmentation, "NOISE", 0.0)
    settings = ["augmentation=weak", "augmentation_strength=0.3"]
    prepare = preprocessing_of(load_config(scenes_config, settings)).training
    image = Image.new("RGB", (8, 8), (200, 80, 80))
    reds = {tuple(drawn(prepare, image, seed)[0, 0]) for seed in range(40)}
    assert len(reds) > 30 and all(r > g and abs(g - b) <= 1 for r, g, b in reds)
