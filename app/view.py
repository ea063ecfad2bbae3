"""Renders captions as HTML, and writes the ZIP file of a batch."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from app.captions import Answer
from captioning.files.writing import json_line
from captioning.models.score_tokens import ScoredCaption
from captioning.report.picture import data_uri
from captioning.report.runs import make_unique
from captioning.report.templates import read_template

MAP_SIDE = 64  # width and height in pixels; the browser stretches the map over the photo
MAX_ALPHA = 215  # opacity of a map's maximum; below 255, so that the photo stays visible


def render(template: str, **values: Any) -> str:
    """Return HTML. template: a file name; its variables are `values`."""
    path = Path(__file__).with_name(template)
    return read_template(path).render(values, attention_pictures=attention_pictures)


def write_zip(answers: Sequence[Answer], path: Path) -> None:
    """Write a ZIP file of captions.jsonl, LABEL/PHOTO.txt and, if photos failed, failed.jsonl.

    LABEL is a checkpoint's label, and PHOTO a photo's name. If photos have the same name, their
    numbers are added.
    """
    captions, failed = [], []
    stems = [Path(answer.name).stem for answer in answers]
    stems = make_unique(stems, [str(number + 1) for number in range(len(answers))])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for answer, stem in zip(answers, stems):
            if answer.error:
                failed.append({"image": answer.name, "reason": str(answer.error)})
                continue
            captions += answer.record()
            for caption in answer.captions:
                folder = re.sub(r"[^\w+. -]", "_", caption.checkpoint.label)
                archive.writestr(f"{folder}/{stem}.txt", caption.details.caption + "\n")
        for name, rows in (("captions.jsonl", captions), ("failed.jsonl", failed)):
            if rows:
                archive.writestr(name, b"".join(map(json_line, rows)))


def attention_pictures(details: ScoredCaption) -> list[str]:
    """Return a picture of each word's attention map, as a data: URI; [] if there are no maps.

    The maximum of a map gets the brightest colour, and zero is transparent.
    """
    if details.attention_map is None:
        return []
    import matplotlib

    maps = details.resized_maps(MAP_SIDE, MAP_SIDE).numpy()  # (words, MAP_SIDE, MAP_SIDE)
    colours = matplotlib.colormaps["inferno"](maps, bytes=True)  # (words, MAP_SIDE, MAP_SIDE, 4)
    colours[..., 3] = (MAX_ALPHA * maps).astype("uint8")
    return [data_uri(Image.fromarray(frame), "PNG", compress_level=6) for frame in colours]
