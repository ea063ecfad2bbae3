"""Images with what people and the runs say of them."""

from collections.abc import Sequence
from typing import NamedTuple, Optional

from captioning.data.caption_files import ImageId
from captioning.report.comparison import Comparison
from captioning.report.picture import Picture, picture

EXAMPLES = 8


class Example(NamedTuple):
    """captions: (label, kind, words) in the order of the rows; words: (text, true of the image)."""

    image_id: str
    picture: Optional[Picture]
    captions: list[tuple[str, str, list[tuple[str, Optional[bool]]]]]


def examples(comparison: Comparison) -> list[Example]:
    """Images at even distances through the split, whatever was said of them."""
    found = []
    for image_id in _evenly_spaced(comparison.image_ids):
        captions = [
            (row.label, row.kind, comparison.marked(row.captions[image_id], image_id))
            for row in comparison.rows
        ]
        found.append(Example(str(image_id), picture(comparison.image_path(image_id)), captions))
    return found


def example_lines(comparison: Comparison) -> str:
    """The first of these images, for a terminal: its file, and a caption a line."""
    image_id = _evenly_spaced(comparison.image_ids)[0]
    width = max(len(row.label) for row in comparison.rows)
    captions = [f"  {row.label:<{width}}  {row.captions[image_id]}" for row in comparison.rows]
    return "\n".join([str(comparison.image_path(image_id) or f"image {image_id}"), *captions])


def _evenly_spaced(ids: Sequence[ImageId]) -> list[ImageId]:
    count = min(EXAMPLES, len(ids))
    return [ids[(2 * i + 1) * len(ids) // (2 * count)] for i in range(count)]
