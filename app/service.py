"""The service that captions one photo at a time, for the page and for its API."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image

from app.checkpoints import Checkpoint
from app.options import Options
from app.photos import Limits
from app.prompts import prompted
from captioning.models.build import preprocessing_of
from captioning.models.word_by_word import END, SpokenCaption, caption_word_by_word
from captioning.runtime.errors import UserError


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
        prepare = preprocessing_of(checkpoint.config).evaluation
        image = prepare(photo).to(checkpoint.device)  # (3, S, S)
        with self._lock, prompted(checkpoint, options.prompt, settings):
            torch.manual_seed(options.seed)
            details = caption_word_by_word(checkpoint.captioner, image, settings)
            used = {**options.used(), "prompt": checkpoint.captioner.prompt}
        return Caption(checkpoint, details, used)
