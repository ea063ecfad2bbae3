"""The operations of BLIP's RandAugment as its authors' code computes them: on bytes, by OpenCV.

`randaugment.py` has the same operations on PIL images, faster, and `autocontrast` as it was meant.
"""

from collections.abc import Sequence
from typing import Callable

import numpy as np

from captioning.data.randaugment import FILL, ROTATION, SHEAR, TRANSLATION, random_sign
from captioning.runtime.errors import UserError

INSTALL = "pip install 'opencv-python-headless<5'"


def check_opencv() -> None:
    """Raise UserError unless OpenCV 4 is here: OpenCV 5 warps to other values."""
    try:
        import cv2
    except ImportError:
        found = "is not installed"
    else:
        if cv2.__version__.startswith("4."):
            return
        found = f"is {cv2.__version__} here, which rounds otherwise"
    raise UserError(
        f"input: exact warps images with OpenCV 4, as the original did; OpenCV {found}: {INSTALL}, "
        "or set input: fast"
    )


def identity(pixels: np.ndarray) -> np.ndarray:
    return pixels


# By a factor of 1, which leaves every value as it is.
brightness = sharpness = identity


def autocontrast(pixels: np.ndarray) -> np.ndarray:
    """Stretch each channel to 0 to 255, if it has a 0; else make all of it 255.

    It was to move the lowest value to 0. But the original negates that value as a byte, so that -5
    is 251, and all values move up.
    """
    return _by_channel(pixels, _stretched)


def equalize(pixels: np.ndarray) -> np.ndarray:
    """Make the values of each channel about equally frequent, as Pillow does."""
    return _by_channel(pixels, _levelled)


def shear_x(pixels: np.ndarray) -> np.ndarray:
    return _warped(pixels, [[1, -SHEAR * random_sign(), 0], [0, 1, 0]])


def shear_y(pixels: np.ndarray) -> np.ndarray:
    return _warped(pixels, [[1, 0, 0], [-SHEAR * random_sign(), 1, 0]])


def translate_x(pixels: np.ndarray) -> np.ndarray:
    return _warped(pixels, [[1, 0, TRANSLATION * random_sign()], [0, 1, 0]])


def translate_y(pixels: np.ndarray) -> np.ndarray:
    return _warped(pixels, [[1, 0, 0], [0, 1, TRANSLATION * random_sign()]])


def rotate(pixels: np.ndarray) -> np.ndarray:
    """Turn about (W / 2, H / 2), which to OpenCV is half a pixel off the middle."""
    import cv2

    height, width = pixels.shape[:2]
    # OpenCV turns anticlockwise, torchvision clockwise.
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), -ROTATION * random_sign(), 1)
    return cv2.warpAffine(pixels, matrix, (width, height), borderValue=FILL)


# In the order of those of `randaugment`, so that a seed draws the same, with the same sign.
OPERATIONS = (
    *(identity, autocontrast, brightness, sharpness, equalize),
    *(shear_x, shear_y, translate_x, translate_y, rotate),
)


def _warped(pixels: np.ndarray, matrix: Sequence[Sequence[float]]) -> np.ndarray:
    """Bilinear; the matrix says where a pixel (x, y, 1) goes, in float32 as in the original."""
    import cv2

    height, width = pixels.shape[:2]
    return cv2.warpAffine(pixels, np.float32(matrix), (width, height), borderValue=FILL)


def _by_channel(pixels: np.ndarray, table_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Look every value up in the table that is made of its channel's 256 counts."""
    channels = np.moveaxis(pixels, 2, 0)
    tables = [table_of(np.bincount(channel.ravel(), minlength=256)) for channel in channels]
    return np.stack([table[channel] for table, channel in zip(tables, channels)], axis=2)


def _stretched(counts: np.ndarray) -> np.ndarray:
    low, high = np.flatnonzero(counts)[[0, -1]].tolist()
    if low == high:
        return np.arange(256, dtype=np.uint8)
    scale = 255 / (high - low)
    return (np.arange(256) * scale + -low % 256 * scale).clip(0, 255).astype(np.uint8)


def _levelled(counts: np.ndarray) -> np.ndarray:
    step = counts[counts > 0][:-1].sum() // 255
    if step == 0:
        return np.arange(256, dtype=np.uint8)
    before = np.cumsum(counts) - counts
    return ((before + step // 2) // step).clip(0, 255).astype(np.uint8)
