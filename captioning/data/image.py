"""Image files made into tensors, as BLIP makes them."""

import os
from typing import Union

import numpy as np
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from captioning.data.randaugment import RandAugment
from captioning.errors import UserError

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def load_image(path: Union[str, os.PathLike]) -> Image.Image:
    """Return an image file as RGB, 8 bits a channel: the first frame, transparency dropped.

    The EXIF orientation is not applied, since the original BLIP does not.
    Raises UserError, naming the file, if it holds no whole image or one above Pillow's limit for
    decompression bombs (179 million pixels).
    """
    try:
        with Image.open(path) as image:
            return _eight_bits(image).convert("RGB")
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such image: check image_root and the image's path in the annotation"
        ) from None
    except Exception as error:  # a decoder raises whatever a broken file makes it stumble over
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: not a readable image ({reason}): replace the file") from None


def _eight_bits(image: Image.Image) -> Image.Image:
    # Pillow clips 16-bit grey at 255, which leaves a white image. Its mode "I" holds 16 bits, too:
    # so a PGM file comes, and, with older Pillows, a PNG.
    if image.mode == "I" or image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    return image


def evaluation_transform(image_size: int) -> transforms.Compose:
    """Return the map from an RGB image to a float tensor (3, S, S), S = `image_size`, normalised.

    The image is resized to a square, bicubic; its aspect ratio is not kept.
    """
    resize = transforms.Resize((image_size, image_size), InterpolationMode.BICUBIC)
    return transforms.Compose([resize, *_normalised_tensor()])


def training_transform(image_size: int, augmentation: str = "blip") -> transforms.Compose:
    """Return BLIP's augmentation: an RGB image to a random float tensor (3, S, S), normalised.

    A crop of half the area or more, a horizontal flip, RandAugment. Draws from torch's generator.
    With `augmentation` "none" it is the transform of evaluation.
    """
    if augmentation == "none":
        return evaluation_transform(image_size)
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(
                image_size, scale=(0.5, 1.0), interpolation=InterpolationMode.BICUBIC
            ),
            transforms.RandomHorizontalFlip(),
            RandAugment(),
            *_normalised_tensor(),
        ]
    )


def _normalised_tensor() -> list:
    return [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
