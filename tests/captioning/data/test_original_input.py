"""input: exact, to the very pixel: against values recorded from the original's code, run with
OpenCV 4.5.5, numpy 1.26 and torchvision on images made here, and against torchvision and Pillow."""

import hashlib
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from captioning.config import load_config
from captioning.data import randaugment, training_transform
from captioning.data.image import load_image, open_image
from captioning.data.randaugment import EXACT_OPERATIONS, OPERATIONS
from captioning.models.build import preprocessing_of
from tests.programs import refused

needs_opencv = pytest.mark.skipif(find_spec("cv2") is None, reason="OpenCV is not installed")
# By operation, of an image with zeros and of one without: for the signs 1 and -1.
RECORDED = {
    "autocontrast": ["3adb703666c7", "3adb703666c7", "beb69716136c", "beb69716136c"],
    "equalize": ["e20aa8656a94", "e20aa8656a94", "9d657729442b", "9d657729442b"],
    "shear_x": ["a3050409e8d6", "e1db87a25c1d", "5942ce5578f8", "d1f58e20ec99"],
    "shear_y": ["6fee9e6f5e73", "637f37f35a38", "f32c00f31577", "58ac383e9984"],
    "translate_x": ["929ddba4b72b", "2da97c14cd1d", "1fb245d5301b", "8677c93cc60e"],
    "translate_y": ["72923a03f3b0", "8f5b4b99384c", "fafaf3bb2f52", "82aff82c8efa"],
    "rotate": ["b28dbb78d725", "3c986848df0d", "c879cceeeedc", "dab705e4c26d"],
}
UNCHANGED = ["8b73fb3d68c2", "8b73fb3d68c2", "37fcbdcd00e1", "37fcbdcd00e1"]
RECORDED |= {name: UNCHANGED for name in ("identity", "brightness", "sharpness")}
NAMES = [
    *("identity", "autocontrast", "brightness", "sharpness", "equalize"),
    *("shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
]
# The whole augmentation to a square of 64 pixels, by seed. All operations occur.
WHOLE = """
cefbc0f1d8be 9cfc2c26575f 8bac3f73912f f844a9f091b5 369c88acdaea a968f9178806 59f46777ec38
0e8b7a2ab37c bad5b92d6c26 f6e9846e0624 d37787228081 c9c583f71279 4135de635de8 ee64492095b2
a9234a3aa7e8 9828a83d71ac dd2772777a22 b79b3676ef93 b8f3e60199db 31df9f512b01 7294f66445e0
c8d6c7edc756 c94597a7ef88 0d5152ab2c2d
"""


def scene(width, height):
    """Return an array of slopes and edges, the same on every machine."""
    y, x = np.mgrid[:height, :width]
    channels = [(7 * x + 3 * y) % 256, (x * y) % 256, (x * x + 5 * y) % 251]
    return np.stack(channels, axis=2).astype(np.uint8)


def digest(pixels):
    content = np.ascontiguousarray(pixels)
    return hashlib.sha1(content.tobytes(), usedforsecurity=False).hexdigest()[:12]


@needs_opencv
@pytest.mark.parametrize(("name", "operation"), list(zip(NAMES, EXACT_OPERATIONS)), ids=NAMES)
def test_an_operation_is_the_originals(monkeypatch, name, operation):
    found = []
    for pixels in (scene(48, 40), (scene(48, 40) // 2 + 9).astype(np.uint8)):
        for sign in (1, -1):
            monkeypatch.setattr(randaugment, "random_sign", lambda sign=sign: sign)
            found.append(digest(operation(Image.fromarray(pixels))))
    assert found == RECORDED[name]


@needs_opencv
def test_the_whole_augmentation_is_the_originals():
    found = []
    for seed in range(24):
        torch.manual_seed(seed)
        pixels = training_transform(64, exact=True)(Image.fromarray(scene(150, 100)))
        assert pixels.shape == (64, 64, 3) and pixels.dtype == torch.uint8
        found.append(digest(pixels.numpy()))
    assert found == WHOLE.split()


def test_crop_and_flip_of_a_file_are_torchvisions_on_the_whole_image(tmp_path, monkeypatch):
    """Of a JPEG that the fast input would decode at a quarter."""
    monkeypatch.setattr("captioning.data.augmentation.rand_augment", lambda image, _: image)
    Image.fromarray(scene(600, 400)).save(tmp_path / "photo.jpg")
    crop = transforms.RandomResizedCrop(64, (0.5, 1.0), interpolation=InterpolationMode.BICUBIC)
    plain = transforms.Compose([crop, transforms.RandomHorizontalFlip()])
    for seed in range(8):
        torch.manual_seed(seed)
        expected = np.asarray(plain(load_image(tmp_path / "photo.jpg")))
        torch.manual_seed(seed)
        with open_image(tmp_path / "photo.jpg") as image:
            found = training_transform(64, exact=True)(image)
        np.testing.assert_array_equal(found.numpy(), expected)


@needs_opencv
def test_a_configuration_has_it_and_fast_is_the_default(scenes_config):
    photo = Image.fromarray(scene(90, 80))
    size = load_config(scenes_config).image_size
    for setting, exact in ((["input=exact"], True), ([], False)):
        torch.manual_seed(15)
        found = preprocessing_of(load_config(scenes_config, setting)).training(photo)
        torch.manual_seed(15)
        assert torch.equal(found, training_transform(size, exact=exact)(photo))


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, "OpenCV is not installed"),
        (SimpleNamespace(__version__="5.0.0"), "OpenCV has version 5.0.0"),
    ],
)
def test_without_opencv_4_it_is_one_line(scenes_config, tmp_path, monkeypatch, module, told):
    monkeypatch.setitem(sys.modules, "cv2", module)
    command = ["captioning.train", "--config", scenes_config, "--output_dir", tmp_path]
    command += ["--device", "cpu", "input=exact", "metrics=[length]"]
    said = refused(*command, part="error: input is exact, which needs OpenCV")
    assert told in said and "pip install 'opencv-python-headless<5'" in said
    assert not list(tmp_path.iterdir())


@needs_opencv
@pytest.mark.parametrize(("fast", "exact"), list(zip(OPERATIONS, EXACT_OPERATIONS)), ids=NAMES)
def test_a_draw_means_the_same_in_both(fast, exact):
    """On a smooth image with zeros; rounding and half a pixel differ."""
    pixels = np.array(Image.fromarray(scene(18, 14)).resize((90, 70), Image.BICUBIC))
    pixels[0, :3] = 0
    for seed in range(4):
        found = []
        for operation in (fast, exact):
            torch.manual_seed(seed)
            found.append(np.asarray(operation(Image.fromarray(pixels))).astype(int))
        assert np.abs(found[0] - found[1]).mean() < 1.5
