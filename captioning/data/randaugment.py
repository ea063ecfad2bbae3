"""Applies BLIP's variant of RandAugment (Cubuk et al. 2020) to PIL images.

The operations are Pillow's and torchvision's. BLIP warps with OpenCV, which rounds differently.
"""

import math
from functools import partial

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


def _translate(image: Image.Image, columns: int, rows: int) -> Image.Image:
    """Translate by whole pixels without interpolation, which would take 30 times as long."""
    sign = random_sign()
    moved = Image.new("RGB", image.size, FILL)
    moved.paste(image, (sign * columns, sign * rows))
    return moved


def _shear(image: Image.Image, columns: int, rows: int) -> Image.Image:
    """Move the pixels of row y by +-SHEAR * y columns, or of column x by +-SHEAR * x rows."""
    angle = math.degrees(math.atan(SHEAR * random_sign()))
    return _affine(image, 0.0, [angle * columns, angle * rows], ORIGIN)


def _affine(image: Image.Image, angle: float, shear: list, center=None) -> Image.Image:
    bilinear = InterpolationMode.BILINEAR
    return F.affine(image, angle, [0, 0], 1.0, shear, bilinear, fill=list(FILL), center=center)


OPERATIONS = (
    lambda image: image,
    F.autocontrast,
    lambda image: image,  # brightness: BLIP's factor, 1.8 * 0.5 + 0.1 = 1, changes nothing
    lambda image: image,  # sharpness: the same
    F.equalize,
    partial(_shear, columns=1, rows=0),
    partial(_shear, columns=0, rows=1),
    partial(_translate, columns=TRANSLATION, rows=0),
    partial(_translate, columns=0, rows=TRANSLATION),
    lambda image: _affine(image, ROTATION * random_sign(), [0.0, 0.0]),
)
