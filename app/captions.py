"""Captions visitors' photos with the loaded checkpoints, for the page and for its API."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch
from PIL import Image
from pydantic import BaseModel

from app.checkpoints import Checkpoint
from app.options import read_options
from captioning.data.image import apply_transform, decode, open_image
from captioning.models.prompts import prompt_ids
from captioning.models.score_tokens import END, ScoredCaption, scored_captions
from captioning.report.picture import Picture, embed_image
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

MAX_PIXELS = 50_000_000
SHOWN_SIDE = 640  # photos in the page are scaled down to this width and height in pixels


class Caption(NamedTuple):
    """A checkpoint's caption of a photo.

    record: the caption as a JSON object, with each word's probability and the decoding settings.
    """

    checkpoint: Checkpoint
    details: ScoredCaption
    record: dict[str, Any]


@dataclass
class Answer:
    """The captions of a photo, or why there are none.

    name: the photo's file name. picture: the photo for the page.
    """

    name: str
    picture: Optional[Picture] = None
    captions: list[Caption] = field(default_factory=list)
    error: Optional[UserError] = None

    def record(self) -> Union[dict, list]:
        """Return the answer of the API, a JSON value."""
        if self.error:
            return {"error": str(self.error)}
        return [{"image": self.name, **caption.record} for caption in self.captions]


class CaptionService:
    """Captions photos. Only one photo is decoded, or one batch captioned, at a time."""

    def __init__(self, checkpoints: Sequence[Checkpoint], max_pixels: int = MAX_PIXELS):
        self.checkpoints, self.max_pixels, self._lock = checkpoints, max_pixels, threading.Lock()

    def answer(self, calls: Iterable[tuple[Optional[str], dict[str, Any]]]) -> list[Answer]:
        """Caption the photos of calls (path of an upload, {field of `Options`: value}).

        Calls with the same options share a batch, except with sampling, where they would share
        random numbers.
        """
        with self._lock:
            answers, batches = [], defaultdict(list)
            for path, values in calls:
                answers.append(answer := Answer(Path(path or "").name))
                try:
                    options = read_options(values)
                    chosen = self._chosen(options)
                    if path is None:
                        raise UserError("no photo was uploaded: drop one, take one, try an example")
                    photo = read_photo(Path(path), self.max_pixels)
                    answer.picture = embed_image(photo, SHOWN_SIDE)
                    inputs = [
                        apply_transform(
                            p.evaluation, photo, answer.name, options.prompt, p.takes_prompt
                        )
                        for p in (checkpoint.preprocessing for checkpoint in chosen)
                    ]
                    batches[options, options.sample and len(answers)].append((answer, inputs))
                except UserError as error:
                    answer.error = error
            for (options, _), members in batches.items():
                members, inputs = zip(*members)
                try:
                    for checkpoint, images in zip(self._chosen(options), zip(*inputs)):
                        for answer, caption in zip(members, _caption(checkpoint, options, images)):
                            answer.captions.append(caption)
                except UserError as error:
                    for answer in members:
                        answer.error = error
            return answers

    def _chosen(self, options: BaseModel) -> list[Checkpoint]:
        """Return the chosen checkpoints. Raises UserError."""
        labels = [checkpoint.label for checkpoint in self.checkpoints]
        chosen = labels if options.checkpoints is None else options.checkpoints
        if not chosen or not set(chosen) <= set(labels):
            raise UserError(f"checkpoints: choose one or more of {', '.join(labels)}")
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.label in chosen]


def read_photo(path: Path, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return a photo as `decode` does. Raises UserError.

    The number of pixels is checked before the photo is decoded. Errors name the file, not the path,
    which the visitor does not know.
    """
    with path.open("rb") as file, open_image(path.name, file) as image:
        if image.width * image.height > max_pixels:
            raise UserError(
                f"{path.name}: {image.width} x {image.height} pixels; this page takes up to "
                f"{max_pixels / 1e6:g} million: make it smaller"
            )
        return decode(image)


def _caption(
    checkpoint: Checkpoint, options: BaseModel, inputs: Sequence[Any]
) -> Iterator[Caption]:
    """Yield the checkpoint's captions of a batch. inputs: photos after the preprocessing.

    Raises UserError for options that the checkpoint does not support.
    """
    captioner = checkpoint.captioner
    prompt = captioner.prompt if options.prompt is None else options.prompt
    own_prompt_ids, room = captioner.prompt_ids, captioner.max_positions or options.max_length
    settings = options.model_dump(exclude={"checkpoints", "seed", "prompt"})
    images = checkpoint.preprocessing.collate(inputs)
    try:
        if options.max_length > room:
            raise UserError(f"max_length is {options.max_length}; it has room for {room} tokens")
        captioner.prompt_ids = prompt_ids(captioner, prompt, "max_length", options.max_length)
        torch.manual_seed(options.seed)
        decoding = DecodingSettings(**settings)
        scored = scored_captions(captioner, images.to(checkpoint.device), decoding)
    except (UserError, ValueError) as error:
        raise UserError(f"{checkpoint.label}: {error}") from error
    finally:
        captioner.prompt_ids = own_prompt_ids
    settings.update(seed=options.seed, prompt=prompt or checkpoint.config.prompt)
    for details in scored:
        words = zip(details.words, details.probabilities.tolist())
        record = {
            "caption": details.caption,
            "score": round(details.score, 6),
            "cut": END not in details.words,  # the caption ends because of max_length
            "label": checkpoint.label,
            "checkpoint": checkpoint.source,
            "settings": settings,
            "words": [
                {"word": word, "probability": round(p, 6)} for word, p in words if word != END
            ],
        }
        yield Caption(checkpoint, details, record)
