"""Applies BLIP's variant of RandAugment (Cubuk et al. 2020) to PIL images.

OPERATIONS are fast. EXACT_OPERATIONS are pixel-identical to BLIP's code: they warp with OpenCV and
use BLIP's autocontrast. With the same random numbers, both variants apply the same operations with
the same signs.
"""

import math
from collections.abc import Sequence
from typing import Callable, TypeVar

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from captioning.runtime.errors import UserError

T = TypeVar("T")

MAGNITUDE = 5 / 10
SHEAR = 0.3 * MAGNITUDE  # columns per row, or rows per column
TRANSLATION = round(10 * MAGNITUDE)  # pixels
ROTATION = 30 * MAGNITUDE  # degrees
FILL = (128, 128, 128)
# BLIP shears about the centre of the top left pixel. torchvision's coordinates begin at the corner
# of this pixel, so that the centre is at (0.5, 0.5).
ORIGIN = [0.5, 0.5]


def rand_augment(image: T, operations: Sequence[Callable[[T], T]]) -> T:
    """Sample two operations with replacement, and apply each with probability 0.5.

    The image is RGB and keeps its size. Uses torch's random generator.
    """
    for choice in torch.randint(len(operations), (2,)).tolist():
        if torch.rand(()) < 0.5:
            image = operations[choice](image)
    return image


def random_sign() -> int:
    return 1 if torch.rand(()) < 0.5 else -1


def identity(image: Image.Image) -> Image.Image:
    return image


# In BLIP the factor of both operations is 1.8 * MAGNITUDE + 0.1 = 1, so that they do nothing.
brightness = sharpness = identity


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


def exact_autocontrast(image: Image.Image) -> Image.Image:
    """Apply BLIP's autocontrast, including a bug of BLIP's code.

    A channel whose lowest value is 0 is stretched to the range 0 to 255. For another lowest value,
    such as 5, BLIP's code should add -5 before stretching. It adds -5 as an unsigned byte, which is
    251, so that all values of the channel become 255.
    """
    table = []
    for counts in np.reshape(image.histogram(), (3, 256)):
        low, high = np.flatnonzero(counts)[[0, -1]].tolist()
        scale = 255 / max(high - low, 1)
        stretched = np.arange(256) * scale + -low % 256 * scale
        table += range(256) if low == high else stretched.clip(0, 255).astype(int).tolist()
    return image.point(table)


def exact_shear_x(image: Image.Image) -> Image.Image:
    return _warp(image, np.float32([[1, -SHEAR * random_sign(), 0], [0, 1, 0]]))


def exact_shear_y(image: Image.Image) -> Image.Image:
    return _warp(image, np.float32([[1, 0, 0], [-SHEAR * random_sign(), 1, 0]]))


def exact_rotate(image: Image.Image) -> Image.Image:
    """Rotate about (W / 2, H / 2), as BLIP does. In OpenCV this is half a pixel off the centre."""
    import cv2

    # OpenCV rotates anticlockwise, torchvision clockwise.
    centre = image.width / 2, image.height / 2
    return _warp(image, cv2.getRotationMatrix2D(centre, -ROTATION * random_sign(), 1))


def _warp(image: Image.Image, matrix: np.ndarray) -> Image.Image:
    """Warp bilinearly. matrix: (2, 3), maps (x, y, 1) in the image to (x, y) in the result."""
    import cv2

    return Image.fromarray(cv2.warpAffine(np.array(image), matrix, image.size, borderValue=FILL))


OPERATIONS = (
    identity,
    F.autocontrast,
    brightness,
    sharpness,
    F.equalize,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    rotate,
)
EXACT_OPERATIONS = (
    identity,
    exact_autocontrast,
    brightness,
    sharpness,
    F.equalize,
    exact_shear_x,
    exact_shear_y,
    translate_x,
    translate_y,
    exact_rotate,
)


def check_opencv() -> None:
    """Raise UserError unless OpenCV 4 is installed. OpenCV 5 computes other values."""
    try:
        import cv2
    except ImportError:
        problem = "is not installed"
    else:
        if cv2.__version__.startswith("4."):
            return
        problem = f"has version {cv2.__version__}, which rounds differently"
    raise UserError(
        f"input is exact, which needs OpenCV 4 to warp images like BLIP, but OpenCV {problem}: "
        "pip install 'opencv-python-headless<5', or set input: fast"
    )
