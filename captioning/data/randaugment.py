"""Applies BLIP's variant of RandAugment (Cubuk et al. 2020) to PIL images.

The operations are Pillow's and torchvision's. BLIP warps with OpenCV, which rounds differently.
"""

import math

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

# BLIP's ranges at magnitude 5 of 10.
SHEAR = 0.15  # columns per row, or rows per column
TRANSLATION = 5  # pixels
ROTATION = 15  # degrees
FILL = (128, 128, 128)
# BLIP shears about the centre of the top left pixel. torchvision's coordinates begin at the corner
# of this pixel, so that the centre is at (0.5, 0.5).
ORIGIN = [0.5, 0.5]


def rand_augment(image: Image.Image) -> Image.Image:
    """Sample two of OPERATIONS with replacement, and apply each with probability 0.5.

    The image is RGB and keeps its size. Uses torch's random generator.
    """
    for choice in torch.randint(len(OPERATIONS), (2,)).tolist():
        if torch.rand(()) < 0.5:
            image = OPERATIONS[choice](image)
    return image


def random_sign() -> int:
    return 1 if torch.rand(()) < 0.5 else -1


def identity(image: Image.Image) -> Image.Image:
    return image


def translate_x(image: Image.Image) -> Image.Image:
    return _translate(image, TRANSLATION * random_sign(), 0)


def translate_y(image: Image.Image) -> Image.Image:
    return _translate(image, 0, TRANSLATION * random_sign())


def _translate(image: Image.Image, columns: int, rows: int) -> Image.Image:
    """Translate by whole pixels without interpolation, which would take 30 times as long."""
    moved = Image.new("RGB", image.size, FILL)
    moved.paste(image, (columns, rows))
    return moved


def shear_x(image: Image.Image) -> Image.Image:
    """Move the pixels of row y by +-SHEAR * y columns."""
    return _affine(image, shear=[_shear_angle(), 0.0], center=ORIGIN)


def shear_y(image: Image.Image) -> Image.Image:
    """Move the pixels of column x by +-SHEAR * x rows."""
    return _affine(image, shear=[0.0, _shear_angle()], center=ORIGIN)


def rotate(image: Image.Image) -> Image.Image:
    return _affine(image, angle=ROTATION * random_sign(), shear=[0.0, 0.0])


def _shear_angle() -> float:
    """Return the angle in degrees, which torchvision expects."""
    return math.degrees(math.atan(SHEAR * random_sign()))


def _affine(image, shear, angle=0.0, center=None) -> Image.Image:
    bilinear = InterpolationMode.BILINEAR
    return F.affine(image, angle, [0, 0], 1.0, shear, bilinear, fill=list(FILL), center=center)


OPERATIONS = (
    identity,
    F.autocontrast,
    identity,  # brightness: BLIP's factor, 1.8 * 0.5 + 0.1 = 1, changes nothing
    identity,  # sharpness: the same
    F.equalize,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    rotate,
)
