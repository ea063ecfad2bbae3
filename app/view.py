"""Renders captions, errors and the tab About as HTML, and writes the ZIP file of the tab Batch."""

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
from PIL import Image

from app.options import Options
from app.photos import SHOWN_SIDE
from app.service import Caption, CaptionService, PhotoResult
from captioning.files.writing import json_line
from captioning.models.score_tokens import END, ScoredCaption
from captioning.report.picture import data_uri, embed_image

MAP_SIDE = 64  # width and height in pixels; the browser stretches the map over the photo
MAX_ALPHA = 215  # opacity of a map's maximum; below 255, so that the photo stays visible

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # file names and prompts are untrusted
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render_results(name: str, photo: Image.Image, captions: Sequence[Caption]) -> str:
    """Return a card per checkpoint as HTML: the photo, and the words with their attention maps.

    name: the photo's file name.
    """
    records = [{"image": name, **caption.record()} for caption in captions]
    return templates.get_template("results.html").render(
        name=name,
        stem=Path(name).stem,
        picture=embed_image(photo, SHOWN_SIDE),
        cards=[(c.checkpoint, c.details, _word_records(c.details)) for c in captions],
        download=base64.b64encode(json.dumps(records, indent=1).encode()).decode(),
    )


def render_error(message: str) -> str:
    """Return an error line as HTML."""
    return f'<p class="smile-error" role="alert">{escape(message)}</p>'


def render_batch_table(photo_results: Sequence[PhotoResult]) -> str:
    """Return a table of captions as HTML, with an error line for each photo without captions."""
    return templates.get_template("batch.html").render(photos=photo_results)


def write_zip(photo_results: Sequence[PhotoResult], path: Path) -> None:
    """Write a ZIP file of captions.jsonl, LABEL/PHOTO.txt and, if photos failed, failed.jsonl.

    LABEL is a checkpoint's label, and PHOTO a photo's name. If photos have the same name, a number
    is added to the name.
    """
    records = [
        {"image": result.name, **caption.record()}
        for result in photo_results
        for caption in result.captions
    ]
    failed = [
        {"image": result.name, "reason": result.error} for result in photo_results if result.error
    ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("captions.jsonl", b"".join(map(json_line, records)))
        if failed:
            archive.writestr("failed.jsonl", b"".join(map(json_line, failed)))
        used_names = set()
        for result in photo_results:
            stem = name = Path(result.name).stem
            number = 1
            while name.lower() in used_names:
                number += 1
                name = f"{stem}_{number}"
            used_names.add(name.lower())
            for caption in result.captions:
                folder = re.sub(r"[^\w+. -]", "_", caption.checkpoint.label)
                archive.writestr(f"{folder}/{name}.txt", caption.details.caption + "\n")


def render_about(service: CaptionService, address: str) -> str:
    """Return the tab About as HTML. address: the server's address, http://host:port."""
    return templates.get_template("about.html").render(
        checkpoints=service.checkpoints,
        limits=service.limits,
        address=address,
        options=list(Options.model_fields),
        versions={name: metadata.version(name) for name in ("torch", "transformers", "gradio")},
    )


def attention_pictures(details: ScoredCaption) -> list[str]:
    """Return a picture of each word's attention map, as a data: URI.

    The maximum of a map gets the brightest colour, and zero is transparent.
    """
    import matplotlib

    maps = details.resized_maps(MAP_SIDE, MAP_SIDE).numpy()  # (words, MAP_SIDE, MAP_SIDE)
    colours = matplotlib.colormaps["inferno"](maps, bytes=True)  # (words, MAP_SIDE, MAP_SIDE, 4)
    colours[..., 3] = (MAX_ALPHA * maps).astype("uint8")
    return [data_uri(Image.fromarray(frame), "PNG", compress_level=6) for frame in colours]


def _word_records(details: ScoredCaption) -> list[dict[str, Any]]:
    """Return a dict for each word except END, with the values that results.html needs.

    text: the word. percent: the word's probability. attention: the picture of the word's attention
    map; None if the captioner has no attention maps.
    """
    pictures = [None] * len(details.words)
    if details.attention_map is not None:
        pictures = attention_pictures(details)
    return [
        {"text": word, "percent": round(100 * p, 1), "attention": picture}
        for word, p, picture in zip(details.words, details.probabilities.tolist(), pictures)
        if word != END
    ]
