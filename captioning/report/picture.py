"""An image embedded in a page, without a file beside it."""

import base64
import io
from pathlib import Path
from typing import NamedTuple, Optional

from PIL import Image

from captioning.data import load_image
from captioning.runtime.errors import UserError

WIDEST = 320  # pixels of an image in the report
SMALL = 160  # an image of at most this size is shown enlarged, with hard pixels


class Picture(NamedTuple):
    """An image in the page: a data: URI, and whether it is drawn with hard pixels."""

    source: str
    pixelated: bool


def picture(path: Optional[Path]) -> Optional[Picture]:
    """The image file, scaled down for a page; None where it cannot be read."""
    try:
        return embedded(load_image(path)) if path else None
    except UserError:
        return None


def embedded(image: Image.Image, widest: int = WIDEST) -> Picture:
    """The RGB image, at most `widest` pixels wide and high."""
    small = max(image.size) <= SMALL
    shown = image.copy()
    shown.thumbnail((widest, widest), Image.Resampling.LANCZOS)
    if small:
        return Picture(data_uri(shown, "PNG", optimize=True), True)
    return Picture(data_uri(shown, "JPEG", quality=82), False)


def data_uri(image: Image.Image, kind: str, **settings) -> str:
    """The image in a format of Pillow, as a data: URI."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{data}"
