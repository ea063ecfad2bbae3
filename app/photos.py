"""Reads uploaded photos, and refuses photos above the limits of the page."""

import contextlib
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from captioning.data.image import decode, open_image
from captioning.runtime.errors import UserError

SHOWN_SIDE = 640  # photos in the page are scaled down to this width and height in pixels


class PhotoError(UserError):
    """A photo that cannot be read or exceeds the limits."""


class Limits(NamedTuple):
    """Limits that prevent one visitor from occupying the whole machine.

    Each is a maximum. upload_mb: size of a file in MiB. pixels: width * height of a photo. photos:
    photos at a time in the tab Batch. queue: callers that wait; further callers are refused. batch:
    photos that a captioner captions at once.
    """

    upload_mb: float = 20.0
    pixels: int = 50_000_000
    photos: int = 100
    queue: int = 20
    batch: int = 16

    @property
    def upload_bytes(self) -> int:
        return int(self.upload_mb * 2**20)


def read_photo(path: Path, name: str, limits: Limits) -> Image.Image:
    """Return a photo as RGB, rotated by its EXIF orientation.

    name: the visitor's file name, for errors. The number of pixels is checked before the photo is
    decoded. Raises PhotoError.
    """
    try:
        with open_image(path) as image:
            width, height = image.size
            if width * height > limits.pixels:
                raise PhotoError(
                    f"{name}: {width} x {height} pixels; this page takes up to "
                    f"{limits.pixels / 1e6:g} million: make it smaller"
                )
            photo = decode(image)
    except UserError as error:
        # The visitor does not know the path of the upload, so it is replaced by the file name.
        raise PhotoError(str(error).replace(str(path), name)) from None
    with contextlib.suppress(Exception):  # the EXIF data may be broken although the pixels are good
        ImageOps.exif_transpose(photo, in_place=True)
    return photo
