"""Augments training images as BLIP does, weakly, or not at all."""

from functools import partial
from typing import Callable

import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from captioning.data.image import decode, is_turned, pixels_of, resize
from captioning.data.randaugment import rand_augment

AREA = (0.5, 1.0)  # the area of a training crop, relative to the image
ASPECT = (3 / 4, 4 / 3)  # width / height of a training crop
# Standard deviation of the noise at strength 1, for pixel values from 0 to 255. The pixel values of
# a photo have about the same standard deviation.
NOISE = 64.0


def training_transform(
    image_size: int, augmentation: str = "blip", strength: float = 0.0, exif: bool = True
) -> Callable:
    """Return a function from an opened image to pixels, uint8 (S, S, 3), S being `image_size`.

    Pixels stay uint8, which takes a quarter of the memory of float32, until `normalise` converts a
    batch to the model's input.

    - augmentation: "blip" (`augmented`), "weak" (`weakly_augmented` with `strength`) or "none" (the
      same pixels as in evaluation)
    - exif: see `decode`
    """
    if augmentation == "blip":
        return partial(augmented, image_size=image_size, exif=exif)
    last = partial(weakly_augmented, strength=strength) if augmentation == "weak" else pixels_of
    upright = partial(decode, exif=exif)
    return transforms.Compose([upright, partial(resize, image_size=image_size), last])


def augmented(image: Image.Image, image_size: int, exif: bool = True) -> Tensor:
    """Apply BLIP's augmentation: a random crop resized to a square, a random flip, RandAugment.

    Maps an opened image to uint8 (S, S, 3). Uses torch's random generator. exif: see `decode`.

    This is faster than BLIP's code but not pixel-identical, for two reasons. Torch rounds
    differently from Pillow when it resizes uint8 images, so that a few values in a thousand differ
    by 1. And if the crop of a JPEG photo is at least 2, 4 or 8 times as large as the square, the
    photo is decoded at 1/2, 1/4 or 1/8 of its size. Values then differ by 2 of 255 on average, and
    the crop begins at a multiple of 2, 4 or 8 pixels.
    """
    # Only a JPEG can be decoded at a fraction of its size, and tells before that how it is turned.
    if image.format not in ("JPEG", "MPO") or (exif and is_turned(image)):
        image = decode(image, exif)
    top, left, height, width = RandomResizedCrop.get_params(image, AREA, ASPECT)
    flipped = torch.rand(1) < 0.5
    reduction = _reduce(image, min(height, width) // image_size)
    top, left, height, width = (v // reduction for v in (top, left, height, width))
    crop = decode(image, exif).crop((left, top, left + width, top + height))
    crop = pixels_of(crop).permute(2, 0, 1)
    square = F.resize(crop, [image_size] * 2, InterpolationMode.BICUBIC, antialias=True)
    if flipped:
        square = square.flip(2)
    square = Image.fromarray(square.permute(1, 2, 0).numpy())
    return pixels_of(rand_augment(square))


def weakly_augmented(image: Image.Image, strength: float) -> Tensor:
    """Apply a random flip, colour jitter and Gaussian noise to an RGB image -> uint8 (H, W, 3).

    There is no crop, which could remove what a caption names, and the hue does not change, because
    captions name colours. strength: 0 to 1. Brightness, contrast and saturation are multiplied by
    random factors between 1 - strength and 1 + strength, in a random order. The noise has a
    standard deviation of strength * NOISE. Uses torch's random generator.
    """
    if torch.rand(()) < 0.5:
        image = F.horizontal_flip(image)
    image = transforms.ColorJitter(strength, strength, strength)(image)
    pixels = pixels_of(image)
    noise = torch.randn(pixels.shape) * (strength * NOISE)
    return (pixels + noise).round().clamp(0, 255).to(torch.uint8)


def _reduce(image: Image.Image, most: int) -> int:
    """Set a JPEG file, not yet decoded, to be decoded at 1/n of its size, and return n.

    n is the largest of 8, 4 and 2 that is at most `most`; 1 if there is none, and for other images.
    """
    width, height = image.size
    if most > 1:
        image.draft(None, (width // most, height // most))
    return round(width / image.width)
