"""The service that captions photos, one or several, for the page and for its API."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from PIL import Image

from app.checkpoints import Checkpoint
from app.options import Options
from app.photos import Limits, read_photo
from captioning.models.build import preprocessing_of
from captioning.models.word_by_word import END, SpokenCaption, caption_word_by_word
from captioning.runtime.errors import UserError
from decoding import DecodingSettings


class Caption(NamedTuple):
    """One checkpoint's caption of one photo, word by word, and the settings it was made with."""

    checkpoint: Checkpoint
    details: SpokenCaption
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


class CaptionService:
    """The checkpoints behind a lock, which each visitor holds for one photo.

    limits: of what visitors may ask for; they are kept where photos are read and batches begin.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], limits: Limits):
        self.checkpoints, self.limits = list(checkpoints), limits
        self._lock = threading.Lock()

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

    def caption(self, photo: Image.Image, checkpoint: Checkpoint, options: Options) -> Caption:
        """Caption an RGB photo. Raises UserError for settings that a checkpoint cannot follow."""
        settings = options.decoding_settings()
        config = checkpoint.config
        if options.prompt is not None:  # with some captioners it is seen beside the photo
            config = config.model_copy(update={"prompt": options.prompt})
        image = preprocessing_of(config).one(photo).to(checkpoint.device)
        with self._lock, prompted(checkpoint, options.prompt, settings):
            torch.manual_seed(options.seed)
            details = caption_word_by_word(checkpoint.captioner, image, settings)
            used = {**options.used(), "prompt": checkpoint.captioner.prompt or config.prompt}
        return Caption(checkpoint, details, used)


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
            photo = read_photo(path, name, service.limits)
        except UserError as error:
            yield Captioned(name, [], str(error))
            continue
        yield Captioned(name, [service.caption(photo, c, options) for c in checkpoints])
