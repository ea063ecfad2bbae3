"""BLIP's variant of RandAugment (Cubuk et al. 2020), on PIL images."""

import math
from collections.abc import Sequence
from typing import Callable, TypeVar

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

T = TypeVar("T")

MAGNITUDE = 5 / 10
SHEAR = 0.3 * MAGNITUDE  # pixels a pixel
TRANSLATION = round(10 * MAGNITUDE)  # pixels
ROTATION = 30 * MAGNITUDE  # degrees
FILL = [128, 128, 128]
# BLIP shears about the centre of the first pixel; here coordinates count from the image's corner.
ORIGIN = [0.5, 0.5]


def identity(image: Image.Image) -> Image.Image:
    return image


# BLIP's factor of both is 1.8 * MAGNITUDE + 0.1, which is 1: they leave an image as it is.
brightness = sharpness = identity


def shear_x(image: Image.Image) -> Image.Image:
    """Move the pixels of row y by +-SHEAR * y columns."""
    return _affine(image, shear=[_sheared(), 0.0], center=ORIGIN)


def shear_y(image: Image.Image) -> Image.Image:
    """Move the pixels of column x by +-SHEAR * x rows."""
    return _affine(image, shear=[0.0, _sheared()], center=ORIGIN)


def translate_x(image: Image.Image) -> Image.Image:
    return _moved(image, TRANSLATION * random_sign(), 0)


def translate_y(image: Image.Image) -> Image.Image:
    return _moved(image, 0, TRANSLATION * random_sign())


def rotate(image: Image.Image) -> Image.Image:
    return _affine(image, angle=ROTATION * random_sign())


OPERATIONS = (
    *(identity, F.autocontrast, brightness, sharpness, F.equalize),
    *(shear_x, shear_y, translate_x, translate_y, rotate),
)


def rand_augment(image: T, operations: Sequence[Callable[[T], T]] = OPERATIONS) -> T:
    """Draw two of `operations` (it may be one twice) and apply each with probability 0.5.

    Takes and returns an RGB image, of PIL for OPERATIONS; its size stays. Draws from torch's
    generator.
    """
    for choice in torch.randint(len(operations), (2,)).tolist():
        if torch.rand(()) < 0.5:
            image = operations[choice](image)
    return image


def random_sign() -> int:
    return 1 if torch.rand(()) < 0.5 else -1


def _sheared() -> float:
    """An angle in degrees, to either side, as torchvision has it."""
    return math.degrees(math.atan(SHEAR * random_sign()))


def _moved(image: Image.Image, columns: int, rows: int) -> Image.Image:
    """Whole pixels need no interpolation, which takes 30 times as long."""
    moved = Image.new("RGB", image.size, tuple(FILL))
    moved.paste(image, (columns, rows))
    return moved


def _affine(image, angle=0.0, shear=(0.0, 0.0), center=None) -> Image.Image:
    return F.affine(
        image,
        angle=angle,
        translate=[0, 0],
        scale=1.0,
        shear=list(shear),
        interpolation=InterpolationMode.BILINEAR,
        fill=FILL,
        center=center,
    )
