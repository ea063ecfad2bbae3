"""Captions photos with the loaded checkpoints, for the page and for the API."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from PIL import Image

from app.checkpoints import Checkpoint
from app.dynamic_batcher import Disconnected, DynamicBatcher
from app.options import Options
from app.photos import SHOWN_SIDE, Limits, PhotoError, read_photo
from captioning.captioners.interface import Captioner
from captioning.config import Config
from captioning.models.build import preprocessing_of
from captioning.models.prompts import prompt_ids
from captioning.models.reranking import Reranker
from captioning.models.score_tokens import END, ScoredCaption, scored_captions
from captioning.runtime.errors import UserError
from decoding import SettingsError

# Threads that read photos; few, because a photo of 50 million pixels needs half a gigabyte.
DECODER_THREADS = 2


class Caption(NamedTuple):
    """A checkpoint's caption of a photo, with its words' probabilities and decoding settings.

    lists_candidates: whether `record` includes the candidates of reranking.
    """

    checkpoint: Checkpoint
    details: ScoredCaption
    settings: dict[str, Any]
    lists_candidates: bool = False

    def record(self) -> dict[str, Any]:
        """Return the caption as a JSON object, for downloads and for answers of the API.

        Keys whose value would be None are left out.
        """
        details = self.details
        words = zip(details.words, details.probabilities.tolist())
        record = {
            "caption": details.caption,
            "score": round(details.score, 6),
            "own_score": details.own_score and round(details.own_score, 6),
            "label": self.checkpoint.label,
            "checkpoint": self.checkpoint.source,
            "settings": self.settings,
            "words": [
                {"word": word, "probability": round(p, 6)} for word, p in words if word != END
            ],
            "candidates": details.candidates if self.lists_candidates else None,
        }
        return {name: value for name, value in record.items() if value is not None}


class _Item(NamedTuple):
    """One photo for one checkpoint. image: the photo after the checkpoint's preprocessing."""

    image: Any
    checkpoint: Checkpoint
    options: Options


class CaptionService:
    """Captions photos with loaded checkpoints. Only one batch runs at a time, for all checkpoints.

    Callers with the same checkpoint and the same settings share a batch, except with sampling.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], limits: Limits):
        self.checkpoints, self.limits = list(checkpoints), limits
        self.batcher = DynamicBatcher(self._caption_batch, limits.batch)
        # malloc keeps memory for each thread that has decoded a photo. A fixed pool of threads
        # limits this memory.
        self._decoders = ThreadPoolExecutor(DECODER_THREADS)

    def caption_file(
        self,
        path: Path,
        name: str,
        labels: Sequence[str],
        options: Options,
        disconnected: Optional[threading.Event] = None,
    ) -> tuple[Image.Image, list[Caption]]:
        """Caption a visitor's file with the chosen checkpoints.

        Returns the photo, scaled down for the page, and one caption per checkpoint.

        name: see `app.photos.read_photo`. labels: the labels of the chosen checkpoints.
        disconnected: set when the visitor disconnects; then `app.dynamic_batcher.Disconnected` is
        raised. With sampling, each caption is a separate batch, so that the same seed gives the
        same caption. Raises PhotoError if the file is at fault, and UserError if the settings are.
        """
        disconnected = disconnected or threading.Event()
        checkpoints = self._find_checkpoints(labels)

        def preprocess() -> tuple[Image.Image, list[Any]]:
            if disconnected.is_set():
                raise Disconnected
            photo = read_photo(path, name, self.limits)
            images = [
                preprocessing_of(_config_with_prompt(c, options)).item(photo) for c in checkpoints
            ]
            photo.thumbnail((SHOWN_SIDE, SHOWN_SIDE), Image.Resampling.LANCZOS)
            return photo, images

        photo, images = self._decoders.submit(preprocess).result()
        captions = []
        for image, checkpoint in zip(images, checkpoints):
            key = None if options.sample else (checkpoint.label, options)
            item = _Item(image, checkpoint, options)
            captions.append(self.batcher.submit(key, item, disconnected))
        return photo, captions

    def _find_checkpoints(self, labels: Sequence[str]) -> list[Checkpoint]:
        """Return the checkpoints with these labels, in the page's order. Raises UserError."""
        all_labels = [checkpoint.label for checkpoint in self.checkpoints]
        unknown = [label for label in labels if label not in all_labels]
        if unknown:
            raise UserError(
                f"checkpoint: there is no {unknown[0]!r}; there are {', '.join(all_labels)}"
            )
        if not labels:
            raise UserError("no checkpoint is chosen: tick one or more")
        return [c for c in self.checkpoints if c.label in labels]

    def _caption_batch(self, items: Sequence[_Item]) -> list[Caption]:
        """Return the captions of items that have the same checkpoint and options.

        Raises UserError for settings that the checkpoint does not support.
        """
        checkpoint, options = items[0].checkpoint, items[0].options
        captioner, config = checkpoint.captioner, _config_with_prompt(checkpoint, options)
        settings = options.decoding_settings()
        images = preprocessing_of(config).collate([item.image for item in items])
        try:
            if settings.two_streams and captioner.null_image is None:
                raise UserError(
                    f"guidance_scale is {settings.guidance_scale}; it has no guidance: set it to 1"
                )
            with temporary_prompt(captioner, options.prompt, settings.max_length):
                torch.manual_seed(options.seed)
                reranking, device = options.reranking(), checkpoint.device
                reranker = Reranker(captioner, reranking, device) if reranking else None
                scored = scored_captions(captioner, images.to(device), settings, reranker)
                recorded_settings = {
                    **options.effective_settings(),
                    "prompt": captioner.prompt or config.prompt,
                }
        except (UserError, SettingsError) as error:
            raise UserError(f"{checkpoint.label}: {error}") from error
        return [
            Caption(checkpoint, details, recorded_settings, options.details) for details in scored
        ]


def _config_with_prompt(checkpoint: Checkpoint, options: Options) -> Config:
    """Return the checkpoint's configuration with the visitor's prompt, if the visitor gave one.

    The preprocessing of some captioners depends on the prompt.
    """
    if options.prompt is None:
        return checkpoint.config
    return checkpoint.config.model_copy(update={"prompt": options.prompt})


@contextmanager
def temporary_prompt(
    captioner: Captioner, prompt: Optional[str], max_length: int
) -> Iterator[None]:
    """Set the captioner's prompt within the `with` block; None keeps the captioner's own prompt.

    Raises UserError if the captioner's vocabulary lacks a word of the prompt, if the prompt has
    max_length tokens or more, or if max_length exceeds the captioner's number of positions.
    """
    previous, maximum = (captioner.prompt, captioner.prompt_ids), captioner.max_positions
    try:
        text = captioner.prompt if prompt is None else prompt
        captioner.prompt_ids = prompt_ids(captioner, text, "max_length", max_length)
        if prompt is not None:
            # The captioner removes the text `prompt` from its output. The output has the
            # tokenizer's spelling, so `prompt` needs the same spelling.
            decoded_prompt = captioner.tokenizer.decode(captioner.prompt_ids)
            captioner.prompt = f"{decoded_prompt} " if decoded_prompt else ""
        if maximum is not None and max_length > maximum:
            raise UserError(f"max_length is {max_length}; it has room for {maximum} tokens")
        yield
    finally:
        captioner.prompt, captioner.prompt_ids = previous


class PhotoResult(NamedTuple):
    """The captions of one photo of the tab Batch.

    If the photo could not be read, `captions` is empty, and `error` has the reason in one line.
    """

    name: str
    captions: list[Caption]
    error: str = ""


def caption_all(
    service: CaptionService,
    photos: Sequence[tuple[Path, str]],
    labels: Sequence[str],
    options: Options,
) -> Iterator[PhotoResult]:
    """Caption photos one by one. Yield a result for each photo, even if it cannot be read.

    photos: pairs (path, the visitor's file name). Raises UserError for too many photos, and for
    settings that a checkpoint does not support.
    """
    max_photos = service.limits.photos
    if len(photos) > max_photos:
        raise UserError(f"{len(photos)} photos; this page takes up to {max_photos} at a time")
    for path, name in photos:
        try:
            yield PhotoResult(name, service.caption_file(path, name, labels, options)[1])
        except PhotoError as error:
            yield PhotoResult(name, [], str(error))
