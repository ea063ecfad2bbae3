"""The service that captions photos, one or several, for the page and for its API."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from PIL import Image

from app.checkpoints import Checkpoint
from app.dynamic_batcher import DynamicBatcher, Gone
from app.options import Options
from app.photos import WIDEST, Limits, PhotoError, read_photo
from captioning.config import Config
from captioning.models.build import preprocessing_of
from captioning.models.score_tokens import END, ScoredCaption, scored_captions
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

DECODED_AT_ONCE = 2  # photos; half a gigabyte is needed to decode one of 50 million pixels


class Caption(NamedTuple):
    """One checkpoint's caption of one photo, word by word, and the settings it was made with."""

    checkpoint: Checkpoint
    details: ScoredCaption
    settings: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """What is downloaded, and what the API answers."""
        words = zip(self.details.words, self.details.probabilities.tolist())
        return {
            "caption": self.details.caption,
            "score": round(self.details.score, 6),
            "label": self.checkpoint.label,
            "checkpoint": self.checkpoint.source,
            "settings": self.settings,
            "words": [
                {"word": word, "probability": round(p, 6)} for word, p in words if word != END
            ],
        }


class Asked(NamedTuple):
    """image: as the checkpoint's preprocessing makes it."""

    image: Any
    checkpoint: Checkpoint
    options: Options


class CaptionService:
    """The checkpoints, one of which captions at a time: photos of all who ask for the same of it.

    limits: of what visitors may ask for; they are kept where photos are read and batches begin.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], limits: Limits):
        self.checkpoints, self.limits = list(checkpoints), limits
        self.gathering = DynamicBatcher(self._captions, limits.batch)
        # Always the same threads: malloc keeps memory for each that ever decoded.
        self._decoders = ThreadPoolExecutor(DECODED_AT_ONCE)

    def chosen(self, labels: Sequence[str]) -> list[Checkpoint]:
        """The checkpoints with the labels, in the page's order. Raises UserError."""
        known = [checkpoint.label for checkpoint in self.checkpoints]
        for label in labels:
            if label not in known:
                raise UserError(f"checkpoint: there is no {label!r}; there are {', '.join(known)}")
        found = [c for c in self.checkpoints if c.label in labels]
        if not found:
            raise UserError("no checkpoint is chosen: tick one or more")
        return found

    def caption_file(
        self,
        path: Path,
        name: str,
        checkpoints: Sequence[Checkpoint],
        options: Options,
        gone: Optional[threading.Event] = None,
    ) -> tuple[Image.Image, list[Caption]]:
        """Read a visitor's file and caption it with each checkpoint; also return the photo, small.

        name, gone: as in `read_photo` and `caption`. The decoded photo is freed before captioning.
        Raises PhotoError for the file, UserError for the settings.
        """
        gone = gone or threading.Event()

        def read() -> tuple[Image.Image, list[Asked]]:
            if gone.is_set():
                raise Gone
            photo = read_photo(path, name, self.limits)
            asked = [_asked(photo, checkpoint, options) for checkpoint in checkpoints]
            photo.thumbnail((WIDEST, WIDEST), Image.Resampling.LANCZOS)
            return photo, asked

        photo, asked = self._decoders.submit(read).result()
        return photo, [self._caption(each, gone) for each in asked]

    def caption(
        self,
        photo: Image.Image,
        checkpoint: Checkpoint,
        options: Options,
        gone: Optional[threading.Event] = None,
    ) -> Caption:
        """Caption an RGB photo, together with those that other threads ask for. Samples, whose
        seed is to give them again, are drawn alone.

        gone: set by whoever does not wait any more; raises Gone then. Raises UserError for settings
        that a checkpoint cannot follow.
        """
        return self._caption(_asked(photo, checkpoint, options), gone or threading.Event())

    def _caption(self, asked: Asked, gone: threading.Event) -> Caption:
        key = None if asked.options.sample else (asked.checkpoint.label, asked.options)
        return self.gathering.ask(key, asked, gone)

    def _captions(self, asked: Sequence[Asked]) -> list[Caption]:
        """Those of photos that are asked for alike. Raises UserError."""
        _, checkpoint, options = asked[0]
        captioner, config = checkpoint.captioner, _config(checkpoint, options)
        settings = options.decoding_settings()
        images = preprocessing_of(config).join([each.image for each in asked])
        with prompted(checkpoint, options.prompt, settings):
            torch.manual_seed(options.seed)
            told = scored_captions(captioner, images.to(checkpoint.device), settings)
            used = {**options.used(), "prompt": captioner.prompt or config.prompt}
        return [Caption(checkpoint, details, used) for details in told]


def _asked(photo: Image.Image, checkpoint: Checkpoint, options: Options) -> Asked:
    image = preprocessing_of(_config(checkpoint, options)).item(photo)
    return Asked(image, checkpoint, options)


def _config(checkpoint: Checkpoint, options: Options) -> Config:
    """With the visitor's prompt, if any: by some captioners it is seen beside the photo."""
    if options.prompt is None:
        return checkpoint.config
    return checkpoint.config.model_copy(update={"prompt": options.prompt})


@contextmanager
def prompted(
    checkpoint: Checkpoint, prompt: Optional[str], settings: DecodingSettings
) -> Iterator[None]:
    """Let every caption start with the prompt within the block; None is the captioner's own.

    Raises UserError for a prompt with a word that the captioner has not learned, and where the
    lengths leave no room for a caption after it.
    """
    captioner, longest = checkpoint.captioner, settings.max_length
    before = captioner.prompt, captioner.prompt_ids
    try:
        if prompt is not None:
            captioner.prompt_ids = captioner.tokenizer.encode_prompt(prompt)
            if captioner.tokenizer.unknown in captioner.prompt_ids:
                raise UserError(
                    f"prompt: {checkpoint.label} has not learned a word of {prompt.strip()!r}"
                )
            # What is cut off a caption is the prompt as the tokenizer writes it.
            written = captioner.tokenizer.decode(captioner.prompt_ids)
            captioner.prompt = f"{written} " if written else ""
        least, most = len(captioner.prompt_ids) + 1, captioner.max_positions
        if longest < least:
            raise UserError(
                f"max_length is {longest}; with {checkpoint.label}'s prompt, of {least - 1} "
                f"tokens, it must be {least} or more"
            )
        if most is not None and longest > most:
            raise UserError(
                f"max_length is {longest}; {checkpoint.label} has room for {most} tokens"
            )
        yield
    finally:
        captioner.prompt, captioner.prompt_ids = before


class Captioned(NamedTuple):
    """One photo of a batch: its captions, or the line that says why there are none."""

    name: str
    captions: list[Caption]
    reason: str = ""


def caption_all(
    service: CaptionService,
    photos: Sequence[tuple[Path, str]],
    checkpoints: Sequence[Checkpoint],
    options: Options,
) -> Iterator[Captioned]:
    """Yield every photo (file, name) as it is done; one that cannot be read does not end it.

    Raises UserError for too many photos and for settings that a checkpoint cannot follow.
    """
    most = service.limits.photos
    if len(photos) > most:
        raise UserError(f"{len(photos)} photos; this page takes up to {most} at a time")
    for path, name in photos:
        try:
            yield Captioned(name, service.caption_file(path, name, checkpoints, options)[1])
        except PhotoError as error:
            yield Captioned(name, [], str(error))
