"""A visitor's file made into a photo, or into one line that says why not."""

import contextlib
import os
from pathlib import Path

from PIL import Image, ImageOps

from app.limits import Limits
from captioning.data.image import decode, open_image
from captioning.runtime.errors import UserError


def read_photo(path: os.PathLike, name: str, limits: Limits) -> Image.Image:
    """The photo, RGB, turned as its EXIF says.

    name: what the visitor calls the file, in errors. Its size is looked at before it is decoded.
    Raises UserError.
    """
    path = Path(path)
    megabytes = path.stat().st_size / 2**20
    if megabytes > limits.upload_mb:
        raise UserError(
            f"{name}: {megabytes:.1f} MB; this page takes up to {limits.upload_mb:g} MB a photo"
        )
    try:
        with open_image(path) as opened:
            width, height = opened.size
            if width * height > limits.pixels:
                raise UserError(
                    f"{name}: {width} x {height} pixels; this page takes up to "
                    f"{limits.pixels / 1e6:g} million: make it smaller"
                )
            photo = decode(opened)
    except UserError as error:
        # The file lies under a name that the visitor never saw.
        raise UserError(str(error).replace(str(path), name)) from None
    with contextlib.suppress(Exception):  # of EXIF data that is broken; the photo is none the less
        photo = ImageOps.exif_transpose(photo)
    return photo
