"""Image files made into tensors, as BLIP makes them."""

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, BinaryIO, Callable, NamedTuple, Optional, Union

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from captioning.data import original_randaugment
from captioning.data.randaugment import rand_augment
from captioning.data.weak_augmentation import weakly_augmented
from captioning.files.images import FORMATS, MOST_SCANS, MOST_SEGMENTS, has_many_scans
from captioning.runtime.errors import UserError, one_line

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
AREA = (0.5, 1.0)  # of a training crop, relative to the image
ASPECT = (3 / 4, 4 / 3)  # width to height
REDUCTIONS = (8, 4, 2)  # that a JPEG decoder can take as it decodes

# What an image may hold at most, in any of its channels: Pillow's own limit, which it leaves to
# every library to lift, and from half of which on it warns.
MOST_PIXELS = 178_956_970
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_image(path: Union[str, os.PathLike], data: Optional[BinaryIO] = None) -> Image.Image:
    """Return an image file of which the header alone has been read, for `decode`.

    data: its content, where `path` is but its name. The format is told from the content, whatever
    the name says. Raises UserError, naming the file, if it is none of FORMATS, has more than
    MOST_PIXELS or, of a JPEG, MOST_SCANS or MOST_SEGMENTS.
    """
    with _errors_naming(path):
        if data is None:
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError("no regular file")  # a pipe would keep who opens it waiting
        image = Image.open(data or path, formats=_formats())
        if image.width * image.height > MOST_PIXELS:
            image.close()
            raise Image.DecompressionBombError
        if image.format in ("JPEG", "MPO"):
            place = image.fp.tell()
            if has_many_scans(image.fp):
                image.close()
                raise UserError(
                    f"{path}: not a readable image (more than {MOST_SCANS} scans or "
                    f"{MOST_SEGMENTS} segments): save it anew"
                )
            image.fp.seek(place)
        return image


@cache
def _formats() -> list[str]:
    """FORMATS that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def decode(image: Image.Image, name: Union[str, os.PathLike] = "") -> Image.Image:
    """Return an opened image as RGB, 8 bits a channel: the first frame, transparency dropped.

    The EXIF orientation is not applied, since the original BLIP does not.
    Raises UserError, naming the file, if it holds no whole image.
    """
    with _errors_naming(name or getattr(image, "filename", "")):
        return _eight_bits(image).convert("RGB")


def load_image(path: Union[str, os.PathLike], data: Optional[BinaryIO] = None) -> Image.Image:
    """Return an image file, decoded; see `open_image`, and `decode` as to what is raised."""
    with open_image(path, data) as image:
        return decode(image, path)


@contextmanager
def _errors_naming(path: Union[str, os.PathLike]) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such image: check image_root and the image's path in the annotation"
        ) from None
    except Image.DecompressionBombError:
        raise UserError(
            f"{path}: not a readable image (more than {MOST_PIXELS} pixels): make it smaller"
        ) from None
    except UnidentifiedImageError:
        raise UserError(
            f"{path}: not a readable image (none of {', '.join(FORMATS)}): replace the file"
        ) from None
    except Exception as error:  # a decoder raises whatever a broken file makes it stumble over
        reason = getattr(error, "strerror", None) or one_line(error, most=None)
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
    return transforms.Compose(
        [_resize(image_size), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )


def training_transform(
    image_size: int, augmentation: str = "blip", strength: float = 0.0, exact: bool = False
) -> Callable:
    """Return the map from an image, opened or decoded, to pixels: uint8 (S, S, 3).

    S is `image_size`. `normalise` makes of a batch of them what the model takes; until then they
    are a quarter of the bytes. With `augmentation` "blip" they are those of `augmented` or, if they
    are to be `exact`, of `augmented_as_published`; with "none" those of evaluation, with "weak"
    these, `weakly_augmented` by `strength`.
    """
    if augmentation == "blip":
        return partial(augmented_as_published if exact else augmented, image_size=image_size)
    weak = partial(weakly_augmented, strength=strength)
    last = weak if augmentation == "weak" else _pixels
    return transforms.Compose([decode, _resize(image_size), last])


def normalise(pixels: Tensor) -> Tensor:
    """Return pixels, uint8 (B, H, W, 3), as the model takes them: float32 (B, 3, H, W)."""
    image = torch.empty((len(pixels), 3, *pixels.shape[1:3]), device=pixels.device)
    # In the order of torchvision's ToTensor and Normalize, whose very values these are.
    image.copy_(pixels.permute(0, 3, 1, 2)).div_(255)
    for channel, mean, std in zip(image.unbind(1), MEAN, STD):
        channel.sub_(mean).div_(std)
    return image


def augmented(image: Image.Image, image_size: int) -> Tensor:
    """Return BLIP's crop of half the area or more, resized to a square; a flip; RandAugment.

    From an image, opened or decoded, to uint8 (S, S, 3). Draws from torch's generator.

    Torch resizes bytes faster than Pillow and rounds otherwise: a few values in a thousand differ
    by 1. A JPEG photo whose crop is at least 2, 4 or 8 times the square is decoded
    at 1/2, 1/4 or 1/8 of its size: on photos its values then differ by 2 of
    255 in the mean, and the crop begins at a multiple of 2, 4 or 8 pixels.
    """
    top, left, height, width = RandomResizedCrop.get_params(image, AREA, ASPECT)
    flipped = torch.rand(1) < 0.5
    reduction = _reduce(image, min(height, width) // image_size)
    top, left, height, width = (v // reduction for v in (top, left, height, width))
    crop = _pixels(decode(image).crop((left, top, left + width, top + height))).permute(2, 0, 1)
    square = F.resize(crop, [image_size] * 2, InterpolationMode.BICUBIC, antialias=True)
    if flipped:
        square = square.flip(2)
    return _pixels(rand_augment(Image.fromarray(square.permute(1, 2, 0).numpy())))


def augmented_as_published(image: Image.Image, image_size: int) -> Tensor:
    """Return what `augmented` does, to the very pixel of the original BLIP's code.

    The image is decoded whole, its crop resized by Pillow, and RandAugment is the original's, which
    needs OpenCV; see `check_opencv`. The same draws make the same crop, flip and operations.
    """
    crop = RandomResizedCrop(image_size, AREA, ASPECT, InterpolationMode.BICUBIC)
    square = transforms.RandomHorizontalFlip()(crop(decode(image)))
    return torch.from_numpy(rand_augment(np.array(square), original_randaugment.OPERATIONS))


def _reduce(image: Image.Image, most: int) -> int:
    """Have a JPEG file decoded at 1/n of its size, n = 2, 4, 8 at `most`; return n, else 1."""
    size = image.size
    for reduction in REDUCTIONS:
        if reduction <= most:
            image.draft(None, (size[0] // reduction, size[1] // reduction))
            return reduction if image.size != size else 1
    return 1


def _resize(image_size: int) -> transforms.Resize:
    return transforms.Resize((image_size, image_size), InterpolationMode.BICUBIC)


def _pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image))  # (H, W, 3)


class Preprocessing(NamedTuple):
    """evaluation: an RGB image to a float tensor (3, S, S), ready for the captioner. training: an
    image, opened or decoded, to a tensor of one shape for all images, drawing from torch's
    generator. normalise: a batch of what `training` makes, on the captioner's device, to what
    `evaluation` makes, (B, 3, S, S); it is left out where `training` makes floats. join: a list of
    what either makes to a batch; where it is not torch.stack, neither needs to make tensors. same:
    `training` draws nothing."""

    evaluation: Callable[[Image.Image], Any]
    training: Callable[[Image.Image], Any]
    normalise: Callable[[Tensor], Tensor]
    join: Callable[[list], Any] = torch.stack
    same: bool = False

    def one(self, image: Image.Image) -> Any:
        """A batch of an RGB image alone, as `evaluation` makes it. Raises UserError."""
        return self.join([self.seen(image)])

    def seen(self, image: Image.Image) -> Any:
        """What `evaluation` makes of an RGB image. Raises UserError."""
        try:
            return self.evaluation(image)
        except ValueError as error:
            raise UserError(str(error)) from error

    @classmethod
    def of_blip(
        cls,
        image_size: int,
        augmentation: str = "blip",
        strength: float = 0.0,
        exact: bool = False,
    ) -> "Preprocessing":
        """A square of `image_size` pixels, bicubic, normalised as BLIP's images are."""
        training = training_transform(image_size, augmentation, strength, exact)
        same = augmentation == "none"
        return cls(evaluation_transform(image_size), training, normalise, same=same)
