"""Embeds images in a page, so that the page needs no other files."""

import base64
import io
from pathlib import Path
from typing import NamedTuple, Optional

from PIL import Image

from captioning.data.image import load_image
from captioning.runtime.errors import UserError

MAX_SIDE = 320  # maximum width and height in pixels of an image in the report
PIXELATED_SIDE = 160  # browsers enlarge images up to this width and height without smoothing


class Picture(NamedTuple):
    """An image in the page.

    source: a data: URI. pixelated: whether the browser enlarges the image without smoothing.
    """

    source: str
    pixelated: bool


def load_picture(path: Optional[Path]) -> Optional[Picture]:
    """Return an image file scaled down for a page; None without a path, or if it cannot be read."""
    try:
        return embed_image(load_image(path)) if path else None
    except UserError:
        return None


def embed_image(image: Image.Image, max_side: int = MAX_SIDE) -> Picture:
    """Return an RGB image scaled down to at most `max_side` pixels in width and height."""
    is_small = max(image.size) <= PIXELATED_SIDE
    thumbnail = image.copy()
    thumbnail.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    if is_small:
        return Picture(data_uri(thumbnail, "PNG", optimize=True), True)
    return Picture(data_uri(thumbnail, "JPEG", quality=82), False)


def data_uri(image: Image.Image, image_format: str, **settings) -> str:
    """Return an image as a data: URI. image_format, settings: arguments of Pillow's `save`."""
    buffer = io.BytesIO()
    image.save(buffer, image_format, **settings)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{image_format.lower()};base64,{data}"
