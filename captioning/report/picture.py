"""Images embedded in a page, so that the page needs no other files."""

import base64
import io
from pathlib import Path
from typing import NamedTuple, Optional

from PIL import Image

from captioning.data import load_image
from captioning.runtime.errors import UserError

WIDEST = 320  # maximum size in pixels of an image in the report
SMALL = 160  # images up to this size are enlarged without smoothing


class Picture(NamedTuple):
    """An image in the page. source: a data: URI. pixelated: whether to enlarge it unsmoothed."""

    source: str
    pixelated: bool


def picture(path: Optional[Path]) -> Optional[Picture]:
    """An image file, scaled down for a page; None if it cannot be read."""
    try:
        return embedded(load_image(path)) if path else None
    except UserError:
        return None


def embedded(image: Image.Image, widest: int = WIDEST) -> Picture:
    """An RGB image, scaled down to at most `widest` pixels in width and height."""
    small = max(image.size) <= SMALL
    shown = image.copy()
    shown.thumbnail((widest, widest), Image.Resampling.LANCZOS)
    if small:
        return Picture(data_uri(shown, "PNG", optimize=True), True)
    return Picture(data_uri(shown, "JPEG", quality=82), False)


def data_uri(image: Image.Image, kind: str, **settings) -> str:
    """An image as a data: URI. kind: a format of Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{data}"
