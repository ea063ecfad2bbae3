"""Images with what people and the runs say of them."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from PIL import Image

from captioning.caption_files import ImageId
from captioning.data import load_image
from captioning.errors import UserError
from captioning.report.comparison import Comparison

EXAMPLES = 8
WIDEST = 320  # pixels of an image in the page
SMALL = 160  # an image this small is shown enlarged, pixel by pixel


class Picture(NamedTuple):
    """An image in the page: a data: URI, and whether it is drawn with hard pixels."""

    source: str
    pixelated: bool


class Example(NamedTuple):
    """captions: (label, kind, words) in the order of the rows; words: (text, true of the image)."""

    image_id: str
    picture: Optional[Picture]
    captions: list[tuple[str, str, list[tuple[str, Optional[bool]]]]]


def examples(comparison: Comparison, count: int = EXAMPLES) -> list[Example]:
    """Images at even distances through the split, whatever was said of them."""
    found = []
    for image_id in _evenly_spaced(comparison.image_ids, count):
        captions = [
            (row.label, row.kind, comparison.marked(row.captions[image_id], image_id))
            for row in comparison.rows
        ]
        found.append(Example(str(image_id), picture(comparison.image_path(image_id)), captions))
    return found


def example_lines(comparison: Comparison) -> str:
    """The first of these images, for a terminal: its file, and a caption a line."""
    image_id = _evenly_spaced(comparison.image_ids, EXAMPLES)[0]
    width = max(len(row.label) for row in comparison.rows)
    captions = [f"  {row.label:<{width}}  {row.captions[image_id]}" for row in comparison.rows]
    return "\n".join([str(comparison.image_path(image_id) or f"image {image_id}"), *captions])


def _evenly_spaced(ids: Sequence[ImageId], count: int) -> list[ImageId]:
    count = min(count, len(ids))
    return [ids[(2 * i + 1) * len(ids) // (2 * count)] for i in range(count)]


def picture(path: Optional[Path]) -> Optional[Picture]:
    """The image file made small enough for a page; None where it cannot be read."""
    try:
        image = path and load_image(path)
    except UserError:
        image = None
    if image is None:
        return None
    small = max(image.size) <= SMALL
    image.thumbnail((WIDEST, WIDEST), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    kind = "PNG" if small else "JPEG"
    image.save(buffer, kind, **({"optimize": True} if small else {"quality": 82}))
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Picture(f"data:image/{kind.lower()};base64,{data}", small)
