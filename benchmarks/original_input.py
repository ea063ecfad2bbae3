"""The input of the original BLIP, written again as it works: Pillow, numpy and OpenCV.

Where OpenCV is not installed, Pillow does what it did: the same pixels, but for rounding, slower.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from captioning.data import MEAN, STD
from captioning.data.randaugment import exact_autocontrast

try:
    import cv2
except ImportError:
    cv2 = None

BICUBIC = transforms.InterpolationMode.BICUBIC
FILL = (128, 128, 128)
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
FACTOR = 5 / 10 * 1.8 + 0.1  # of brightness and sharpness: 1
BRIGHTNESS = (np.arange(256) * FACTOR).clip(0, 255).astype(np.uint8)
SHEAR, TRANSLATION, ANGLE = 0.3 * 5 / 10, 10 * 5 / 10, math.radians(30 * 5 / 10)


def original_loader(
    paths: Sequence[Path], image_size: int, batch_size: int, num_workers: int
) -> DataLoader:
    """Shuffled batches [image, float (B, 3, S, S); position], as the original made them."""
    crop = transforms.RandomResizedCrop(image_size, (0.5, 1.0), interpolation=BICUBIC)
    flip, normalize = transforms.RandomHorizontalFlip(), transforms.Normalize(MEAN, STD)
    transform = transforms.Compose([crop, flip, randaugment, transforms.ToTensor(), normalize])
    return plain_loader(Photos(paths, transform), batch_size, num_workers)


def plain_loader(dataset: Dataset, batch_size: int, num_workers: int) -> DataLoader:
    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


class Photos(Dataset):
    """Items (`transform` of the image, position)."""

    def __init__(self, paths: Sequence[Path], transform: Callable):
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def randaugment(image: Image.Image) -> np.ndarray:
    """Two operations of ten, each applied with probability 0.5; uint8 (H, W, 3)."""
    pixels = np.array(image)
    for operation in np.random.choice(list(OPERATIONS.values()), 2):
        if np.random.random() < 0.5:
            pixels = operation(pixels)
    return pixels


def _sharpened(pixels: np.ndarray) -> np.ndarray:
    """The smoothed image is made, although a factor of 1 has no use for it."""
    if cv2 is not None:
        cv2.filter2D(pixels, -1, SMOOTH)
    else:
        np.array(Image.fromarray(pixels).filter(ImageFilter.SMOOTH))
    return pixels


def _rotated(pixels: np.ndarray) -> np.ndarray:
    cosine, sine = math.cos(ANGLE), _sign() * math.sin(ANGLE)
    y, x = (side / 2 for side in pixels.shape[:2])
    across = (cosine, sine, x - cosine * x - sine * y)
    return _warped(pixels, across, (-sine, cosine, y + sine * x - cosine * y))


OPERATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda pixels: pixels,
    "autocontrast": lambda pixels: np.array(exact_autocontrast(Image.fromarray(pixels))),
    "brightness": lambda pixels: BRIGHTNESS[pixels],
    "sharpness": _sharpened,
    "equalize": lambda pixels: np.array(ImageOps.equalize(Image.fromarray(pixels))),
    "shear_x": lambda pixels: _warped(pixels, (1, _sign() * SHEAR, 0), (0, 1, 0)),
    "shear_y": lambda pixels: _warped(pixels, (1, 0, 0), (_sign() * SHEAR, 1, 0)),
    "translate_x": lambda pixels: _warped(pixels, (1, 0, _sign() * TRANSLATION), (0, 1, 0)),
    "translate_y": lambda pixels: _warped(pixels, (1, 0, 0), (0, 1, _sign() * TRANSLATION)),
    "rotate": _rotated,
}


def _sign() -> int:
    return 1 if np.random.random() < 0.5 else -1


def _warped(pixels: np.ndarray, first: tuple, second: tuple) -> np.ndarray:
    """Pixel (x, y) of the result is that at (first . (x, y, 1), second . (x, y, 1))."""
    height, width = pixels.shape[:2]
    if cv2 is not None:
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        matrix = np.array([first, second], np.float64)
        return cv2.warpAffine(pixels, matrix, (width, height), flags=flags, borderValue=FILL)
    # Pillow counts from the corner of the first pixel, OpenCV from its middle.
    (a, b, c), (d, e, f) = first, second
    matrix = (a, b, c + (1 - a - b) / 2, d, e, f + (1 - d - e) / 2)
    affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    image = Image.fromarray(pixels)
    return np.array(image.transform(image.size, affine, matrix, bilinear, fillcolor=FILL))
