"""Training images: BLIP's augmentation, a weak one, and none."""

from functools import partial
from typing import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from captioning.data.image import decode, resize
from captioning.data.randaugment import EXACT_OPERATIONS, OPERATIONS, rand_augment

AREA = (0.5, 1.0)  # of a training crop, relative to the image
ASPECT = (3 / 4, 4 / 3)  # width to height
REDUCTIONS = (8, 4, 2)  # factors by which a JPEG decoder can reduce an image as it decodes
GRAIN = 64.0  # standard deviation of the noise at strength 1, of 255; about that of a photo


def training_transform(
    image_size: int, augmentation: str = "blip", strength: float = 0.0, exact: bool = False
) -> Callable:
    """Return the map from an image, opened or decoded, to pixels: uint8 (S, S, 3).

    S is `image_size`. `normalise` turns a batch of pixels into the model's input; until then they
    take a quarter of the bytes. augmentation: "blip" (`augmented`, or `augmented_as_published` if
    `exact`), "weak" (`weakly_augmented` by `strength`) or "none" (the pixels of evaluation).
    """
    if augmentation == "blip":
        return partial(augmented_as_published if exact else augmented, image_size=image_size)
    weak = partial(weakly_augmented, strength=strength)
    return transforms.Compose(
        [decode, resize(image_size), weak if augmentation == "weak" else _pixels]
    )


def augmented(image: Image.Image, image_size: int) -> Tensor:
    """Return BLIP's crop of half the area or more, resized to a square; a flip; RandAugment.

    Maps an image, opened or decoded, to uint8 (S, S, 3). Draws from torch's generator.

    Torch resizes bytes faster than Pillow and rounds otherwise: a few values in a thousand differ
    by 1. A JPEG photo whose crop is at least 2, 4 or 8 times the square is decoded at 1/2, 1/4 or
    1/8 of its size. On photos its values then differ by 2 of 255 on average, and the crop begins at
    a multiple of 2, 4 or 8 pixels.
    """
    top, left, height, width = RandomResizedCrop.get_params(image, AREA, ASPECT)
    flipped = torch.rand(1) < 0.5
    reduction = _reduce(image, min(height, width) // image_size)
    top, left, height, width = (v // reduction for v in (top, left, height, width))
    crop = _pixels(decode(image).crop((left, top, left + width, top + height))).permute(2, 0, 1)
    square = F.resize(crop, [image_size] * 2, InterpolationMode.BICUBIC, antialias=True)
    if flipped:
        square = square.flip(2)
    square = Image.fromarray(square.permute(1, 2, 0).numpy())
    return _pixels(rand_augment(square, OPERATIONS))


def augmented_as_published(image: Image.Image, image_size: int) -> Tensor:
    """Return what `augmented` does, pixel-identical to the original BLIP's code.

    The image is decoded whole, its crop resized by Pillow, and RandAugment is the original's, which
    needs OpenCV; see `check_opencv`. The same draws choose the same crop, flip and operations.
    """
    crop = RandomResizedCrop(image_size, AREA, ASPECT, InterpolationMode.BICUBIC)
    square = transforms.RandomHorizontalFlip()(crop(decode(image)))
    return _pixels(rand_augment(square, EXACT_OPERATIONS))


def weakly_augmented(image: Image.Image, strength: float) -> Tensor:
    """Flip an RGB image half the time, jitter its colours, add Gaussian noise: uint8 (H, W, 3).

    Nothing is cropped. strength: 0 to 1. Brightness, contrast and saturation, in a random order,
    are each multiplied by a factor between 1 - strength and 1 + strength. The noise of every value
    has a standard deviation of strength * GRAIN. The hue stays, since captions name colours. Draws
    from torch's generator.
    """
    if torch.rand(()) < 0.5:
        image = F.horizontal_flip(image)
    image = transforms.ColorJitter(strength, strength, strength)(image)
    pixels = _pixels(image)
    noise = torch.randn(pixels.shape) * (strength * GRAIN)
    return (pixels + noise).round().clamp(0, 255).to(torch.uint8)


def _reduce(image: Image.Image, most: int) -> int:
    """Have a JPEG file decoded at 1/n of its size, n = 2, 4, 8 at `most`; return n, else 1."""
    size = image.size
    for reduction in REDUCTIONS:
        if reduction <= most:
            image.draft(None, (size[0] // reduction, size[1] // reduction))
            return reduction if image.size != size else 1
    return 1


def _pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image))  # (H, W, 3)
