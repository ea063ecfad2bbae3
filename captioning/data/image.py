"""Opens image files within limits, decodes them, and converts them to tensors as BLIP does."""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from captioning.data.colour import to_rgb
from captioning.data.jpeg import MAX_SCANS, MAX_SEGMENTS, has_many_scans
from captioning.files.images import FORMATS
from captioning.files.reading import StrPath
from captioning.files.tables import image_bytes, is_row
from captioning.runtime.errors import UserError, one_line, value_errors_as_user_errors

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
ORIENTATION = 0x0112  # the tag of EXIF


def open_image(path: StrPath, data: Optional[BinaryIO] = None) -> Image.Image:
    """Open an image file, and check its header and a JPEG's markers. `decode` reads the pixels.

    data: the file's content; `path` is then used only in errors. The format is detected from the
    content, not from the name. Raises UserError, which names the file, for a format that is not in
    FORMATS, for an image of more pixels than Pillow's limit, and for a JPEG of more than MAX_SCANS
    scans or MAX_SEGMENTS segments.
    """
    with _errors_naming(path):
        if data is None and is_row(path):
            data = io.BytesIO(image_bytes(path))
        if data is None:
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError("not a regular file")  # opening a pipe would block
        image = Image.open(data or path, formats=_formats())
        image.path = path  # for errors of `decode`
        if image.format in ("JPEG", "MPO"):
            position = image.fp.tell()
            if has_many_scans(image.fp):
                image.close()
                raise UserError(
                    f"{path}: not a readable image (more than {MAX_SCANS} scans or "
                    f"{MAX_SEGMENTS} segments): save it again"
                )
            image.fp.seek(position)
        return image


@cache
def _formats() -> list[str]:
    """Return the names in FORMATS that are supported: HEIF, if pillow-heif is installed."""
    Image.init()
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    return [name for name in FORMATS if name in Image.OPEN]


def decode(image: Image.Image, exif: bool = True) -> Image.Image:
    """Decode the first frame of an image to 8-bit RGB, composed on white.

    exif: whether to turn the image upright by its EXIF orientation, and to convert its colours to
    sRGB by its colour profile; BLIP ignores both. Raises UserError, which names the file, if the
    image is incomplete or the range of its values unknown.
    """
    with _errors_naming(getattr(image, "path", "")):
        image = to_rgb(image, exif)
    if exif and is_turned(image):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def is_turned(image: Image.Image) -> bool:
    """Return whether an image's EXIF orientation is another one than upright."""
    try:
        return image.getexif().get(ORIENTATION, 1) in range(2, 9)
    except Exception:  # EXIF data may be damaged in many ways although the pixels are good
        return False


def load_image(path: StrPath, data: Optional[BinaryIO] = None, exif: bool = True) -> Image.Image:
    """Open and decode an image file, see `open_image` and `decode`. Raises UserError."""
    with open_image(path, data) as image:
        return decode(image, exif)


def apply_transform(
    transform: Callable,
    image: Image.Image,
    name: StrPath,
    prompt: Optional[str] = None,
    takes_prompt: bool = False,
) -> Any:
    """Return `transform(image)`, or `transform(image, prompt)` if it takes a prompt.

    A ValueError means that the captioner cannot process the image. It becomes a UserError that
    names the image.
    """
    try:
        return transform(image, prompt) if takes_prompt else transform(image)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error


@contextmanager
def _errors_naming(path: StrPath) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such image: check its path, and image_root or --root"
        ) from None
    except UnidentifiedImageError:
        is_heif = str(path).lower().endswith(FORMATS["HEIF"]) and "HEIF" not in _formats()
        advice = "pip install pillow-heif" if is_heif else "replace the file"
        raise UserError(
            f"{path}: not a readable image (none of {', '.join(_formats())}): {advice}"
        ) from None
    except Exception as error:  # decoders raise errors of many types for broken files
        reason = getattr(error, "strerror", None) or one_line(error, max_length=None)
        advice = (
            "check its permissions" if isinstance(error, PermissionError) else "replace the file"
        )
        raise UserError(f"{path}: not a readable image ({reason}): {advice}") from None


def resize(image: Image.Image, image_size: int) -> Image.Image:
    """Resize an image bicubically to a square, which changes the aspect ratio."""
    return image.resize((image_size, image_size), Image.Resampling.BICUBIC)


def pixels_of(image: Image.Image) -> Tensor:
    """Return the pixels of an RGB image, uint8 (H, W, 3)."""
    return torch.from_numpy(np.array(image))


def evaluation_transform(image_size: int) -> Callable[[Image.Image], Tensor]:
    """Return a function from an RGB image to a normalised float tensor (3, S, S).

    S is `image_size`. The values equal those of torchvision's Resize, ToTensor and Normalize.
    """
    return partial(_evaluation_input, image_size=image_size)


def _evaluation_input(image: Image.Image, image_size: int) -> Tensor:
    return normalise(pixels_of(resize(image, image_size)).unsqueeze(0)).squeeze(0)


def normalise(pixels: Tensor) -> Tensor:
    """Normalise pixels, uint8 (B, H, W, 3) -> float32 (B, 3, H, W), the model's input."""
    image = torch.empty((len(pixels), 3, *pixels.shape[1:3]), device=pixels.device)
    # These are the operations of torchvision's ToTensor and Normalize, in their order, so that the
    # values are bit-identical.
    image.copy_(pixels.permute(0, 3, 1, 2)).div_(255)
    for channel, mean, std in zip(image.unbind(1), MEAN, STD):
        channel.sub_(mean).div_(std)
    return image


class Preprocessing(NamedTuple):
    """The functions that make a captioner's input from images.

    - evaluation: maps an RGB image to a float tensor (3, S, S), the captioner's input
    - training: maps an opened image to such a tensor, or to pixels, uint8 (S, S, 3), which
      `normalise` converts on the captioner's device. Uses torch's random generator.
    - collate: maps a list of outputs of `evaluation` or `training` to a batch. torch.stack needs
      tensors of one shape; another function may take other outputs.
    - is_deterministic: whether `training` is deterministic
    - takes_prompt: whether `evaluation` and `training` take an optional second argument, the
      image's prompt (a str or None)
    """

    evaluation: Callable[..., Any]
    training: Callable[..., Any]
    collate: Callable[[list], Any] = torch.stack
    is_deterministic: bool = False
    takes_prompt: bool = False

    def one(self, image: Image.Image) -> Any:
        """Return a batch that contains only `evaluation` of an RGB image. Raises UserError."""
        with value_errors_as_user_errors():
            return self.collate([self.evaluation(image)])
