"""Image files: opened within limits, decoded, and made into tensors as BLIP makes them."""

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from captioning.files.images import FORMATS, MOST_SCANS, MOST_SEGMENTS, has_many_scans
from captioning.files.reading import StrPath
from captioning.runtime.errors import UserError, one_line

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

# Pillow's own limit. It is set again here because any library may lift Pillow's. Pillow warns from
# half of it on.
MOST_PIXELS = 178_956_970
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def open_image(path: StrPath, data: Optional[BinaryIO] = None) -> Image.Image:
    """Return an image file of which only the header has been read, for `decode`.

    data: the file's content; `path` is then only its name. The format is detected from the content,
    not from the name. Raises UserError, naming the file, if it is none of FORMATS, has more than
    MOST_PIXELS or, for a JPEG, more than MOST_SCANS or MOST_SEGMENTS.
    """
    with _errors_naming(path):
        if data is None:
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError("no regular file")  # opening a pipe would block
        image = Image.open(data or path, formats=_formats())
        if image.width * image.height > MOST_PIXELS:
            image.close()
            raise Image.DecompressionBombError
        if image.format in ("JPEG", "MPO"):
            position = image.fp.tell()
            if has_many_scans(image.fp):
                image.close()
                raise UserError(
                    f"{path}: not a readable image (more than {MOST_SCANS} scans or "
                    f"{MOST_SEGMENTS} segments): save it again"
                )
            image.fp.seek(position)
        return image


@cache
def _formats() -> list[str]:
    """Return those of FORMATS that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def decode(image: Image.Image, name: StrPath = "") -> Image.Image:
    """Return an opened image as RGB, 8 bits a channel: the first frame, transparency dropped.

    The EXIF orientation is not applied, since the original BLIP does not.
    Raises UserError, naming the file, if the image is incomplete.
    """
    with _errors_naming(name or getattr(image, "filename", "")):
        # Pillow clips 16-bit grey at 255, which makes the image white. Its mode "I" has 16 bits for
        # a PGM file and, in older Pillows, for a PNG.
        if image.mode == "I" or image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
        return image.convert("RGB")


def load_image(path: StrPath, data: Optional[BinaryIO] = None) -> Image.Image:
    """Return an image file, decoded; see `open_image` and `decode` for the errors raised."""
    with open_image(path, data) as image:
        return decode(image, path)


@contextmanager
def _errors_naming(path: StrPath) -> Iterator[None]:
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
    except Exception as error:  # decoders raise errors of many types for broken files
        reason = getattr(error, "strerror", None) or one_line(error, most=None)
        raise UserError(f"{path}: not a readable image ({reason}): replace the file") from None


def resize(image_size: int) -> transforms.Resize:
    """Return the resize to a square, bicubic; the aspect ratio is not kept."""
    return transforms.Resize((image_size, image_size), InterpolationMode.BICUBIC)


def evaluation_transform(image_size: int) -> transforms.Compose:
    """Return the map from an RGB image to a float tensor (3, S, S), normalised."""
    return transforms.Compose(
        [resize(image_size), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )


def normalise(pixels: Tensor) -> Tensor:
    """Return pixels, uint8 (B, H, W, 3), as the model's input: float32 (B, 3, H, W)."""
    image = torch.empty((len(pixels), 3, *pixels.shape[1:3]), device=pixels.device)
    # In the order of torchvision's ToTensor and Normalize, which gives bit-identical values.
    image.copy_(pixels.permute(0, 3, 1, 2)).div_(255)
    for channel, mean, std in zip(image.unbind(1), MEAN, STD):
        channel.sub_(mean).div_(std)
    return image


class Preprocessing(NamedTuple):
    """How a captioner's images are made.

    evaluation: maps an RGB image to a float tensor (3, S, S), the captioner's input.
    training: maps an image, opened or decoded, to a tensor whose shape is the same for all images;
        draws from torch's generator.
    normalise: maps a batch of training's output, on the captioner's device, to evaluation's,
        (B, 3, S, S). Not called where `training` returns floats.
    join: makes a batch of a list of items. If it is not torch.stack, items need not be tensors.
    same: whether `training` draws nothing.
    """

    evaluation: Callable[[Image.Image], Any]
    training: Callable[[Image.Image], Any]
    normalise: Callable[[Tensor], Tensor]
    join: Callable[[list], Any] = torch.stack
    same: bool = False

    def one(self, image: Image.Image) -> Any:
        """Return a batch of one RGB image, for evaluation. Raises UserError."""
        return self.join([self.item(image)])

    def item(self, image: Image.Image) -> Any:
        """Return `evaluation` of an RGB image. Raises UserError."""
        try:
            return self.evaluation(image)
        except ValueError as error:
            raise UserError(str(error)) from error
