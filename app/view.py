"""Renders captions, errors and the tab About as HTML, and writes the ZIP of a batch."""

import base64
import json
import re
import zipfile
from collections.abc import Sequence
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from app.options import Options
from app.photos import SHOWN_SIDE
from app.service import Caption, CaptionService, PhotoResult
from captioning.files.writing import json_line
from captioning.models.score_tokens import END, ScoredCaption
from captioning.report.picture import data_uri, embedded

MAP_SIDE = 64  # pixels of an attention map; the browser stretches it over the photo
MAX_ALPHA = 215  # below 255, so that the photo stays visible

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # file names and prompts are untrusted
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def results(name: str, photo: Image.Image, captions: Sequence[Caption]) -> str:
    """One card per checkpoint: the photo, and the caption's words with their attention maps."""
    records = [{"image": name, **caption.record()} for caption in captions]
    return templates.get_template("results.html").render(
        name=name,
        stem=Path(name).stem,
        picture=embedded(photo, SHOWN_SIDE),
        cards=[(c.checkpoint, c.details, _words(c.details)) for c in captions],
        download=base64.b64encode(json.dumps(records, indent=1).encode()).decode(),
    )


def error(message: str) -> str:
    """An error line as HTML."""
    return f'<p class="smile-error" role="alert">{escape(message)}</p>'


def batch_table(done: Sequence[PhotoResult]) -> str:
    """A table of the captions, and an error line for each photo without captions."""
    return templates.get_template("batch.html").render(photos=done)


def write_zip(done: Sequence[PhotoResult], path: Path) -> None:
    """Write captions.jsonl, LABEL/PHOTO.txt and, if photos failed, failed.jsonl."""
    records = [{"image": d.name, **caption.record()} for d in done for caption in d.captions]
    failed = [{"image": d.name, "reason": d.error} for d in done if d.error]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("captions.jsonl", b"".join(map(json_line, records)))
        if failed:
            archive.writestr("failed.jsonl", b"".join(map(json_line, failed)))
        names: set[str] = set()
        for photo in done:
            stem = name = Path(photo.name).stem
            number = 1
            while name.lower() in names:
                number += 1
                name = f"{stem}_{number}"
            names.add(name.lower())
            for caption in photo.captions:
                folder = re.sub(r"[^\w+. -]", "_", caption.checkpoint.label)
                archive.writestr(f"{folder}/{name}.txt", caption.details.caption + "\n")


def about(service: CaptionService, address: str) -> str:
    """The tab About. address: the server's address, http://host:port."""
    return templates.get_template("about.html").render(
        checkpoints=service.checkpoints,
        limits=service.limits,
        address=address,
        options=list(Options.model_fields),
        versions={name: metadata.version(name) for name in ("torch", "transformers", "gradio")},
    )


def attention_pictures(attention_map: Tensor) -> list[str]:
    """A data: URI with a picture of each word's attention map.

    attention_map: (words, G, G). Each word's map is interpolated. Its maximum is brightest, zero is
    transparent.
    """
    import matplotlib

    size = (MAP_SIDE, MAP_SIDE)
    maps = F.interpolate(attention_map.unsqueeze(1), size=size, mode="bicubic", align_corners=False)
    maps = maps[:, 0].clamp(min=0)  # (words, MAP_SIDE, MAP_SIDE)
    maps = (maps / maps.amax((1, 2), keepdim=True).clamp(min=1e-9)).numpy()
    colours = matplotlib.colormaps["inferno"](maps, bytes=True)  # (words, MAP_SIDE, MAP_SIDE, 4)
    colours[..., 3] = (MAX_ALPHA * maps).astype("uint8")
    return [data_uri(Image.fromarray(frame), "PNG", compress_level=6) for frame in colours]


def _words(details: ScoredCaption) -> list[dict[str, Any]]:
    """Each word's text, percentage and attention map, a data: URI or None. END is left out."""
    maps = details.attention_map
    pictures = [None] * len(details.words) if maps is None else attention_pictures(maps)
    return [
        {"text": word, "percent": round(100 * p, 1), "attention": picture}
        for word, p, picture in zip(details.words, details.probabilities.tolist(), pictures)
        if word != END
    ]
