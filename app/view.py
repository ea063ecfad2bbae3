"""What the page shows of captions and errors, as HTML."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from app.batch import Captioned
from app.desk import Caption
from app.gaze_pictures import gaze_pictures
from captioning.models.word_by_word import END
from captioning.report.picture import embedded

WIDEST = 640  # pixels of the photo behind the gaze

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # a file's name and a prompt can hold anything
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def results(name: str, photo: Image.Image, captions: Sequence[Caption]) -> str:
    """A card a checkpoint: the photo, the caption's words with their gaze, what to do with it."""
    records = [{"image": name, **caption.record()} for caption in captions]
    return templates.get_template("results.html").render(
        name=name,
        stem=Path(name).stem,
        picture=embedded(photo, WIDEST),
        cards=[_card(caption) for caption in captions],
        download=base64.b64encode(json.dumps(records, indent=1).encode()).decode(),
    )


def error(message: str) -> str:
    """One line that says what was wrong and what to do."""
    return templates.from_string('<p class="smile-error" role="alert">{{ message }}</p>').render(
        message=message
    )


def batch_table(done: Sequence[Captioned]) -> str:
    """A table of what was said, and a line for each photo that has no caption."""
    photos = [photo for photo in done if not photo.reason]
    template = templates.get_template("batch.html")
    return template.render(photos=photos, failed=[photo.reason for photo in done if photo.reason])


def _card(caption: Caption) -> dict[str, Any]:
    told = caption.told
    gaze = [None] * len(told.words) if told.gaze is None else gaze_pictures(told.gaze)
    words = [
        {"text": word, "percent": round(100 * p, 1), "gaze": picture}
        for word, p, picture in zip(told.words, told.probabilities.tolist(), gaze)
        if word != END
    ]
    checkpoint = caption.checkpoint
    return {
        "label": checkpoint.label,
        "colour": checkpoint.colour,
        "caption": told.caption,
        "words": words,
        "looks": told.gaze is not None,
        "score": told.score,
    }
