"""Where captions are made: one photo at a time, whoever asks for it."""

import json
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image

from app.checkpoints import Checkpoint
from app.options import Options
from app.prompts import prompted
from captioning.models.build import preprocessing_of
from captioning.models.word_by_word import END, SpokenCaption, caption_word_by_word
from captioning.runtime.errors import UserError


class Caption(NamedTuple):
    """What one checkpoint said of one photo, and by which settings."""

    checkpoint: Checkpoint
    told: SpokenCaption
    settings: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """What is downloaded, and what the API answers."""
        spoken = zip(self.told.words, self.told.probabilities.tolist())
        return {
            "caption": self.told.caption,
            "score": round(self.told.score, 6),
            "label": self.checkpoint.label,
            "checkpoint": self.checkpoint.source,
            "settings": self.settings,
            "words": [
                {"word": word, "probability": round(p, 6)} for word, p in spoken if word != END
            ],
        }


class Desk:
    """The checkpoints, and a lock: of several visitors each has the machine for one photo."""

    def __init__(self, checkpoints: Sequence[Checkpoint]):
        self.checkpoints = list(checkpoints)
        self._lock = threading.Lock()

    def chosen(self, labels: Sequence[str]) -> list[Checkpoint]:
        """Those with the labels, in the page's order. Raises UserError."""
        known = [checkpoint.label for checkpoint in self.checkpoints]
        for label in labels:
            if label not in known:
                raise UserError(f"checkpoint: there is no {label!r}; there are {', '.join(known)}")
        found = [c for c in self.checkpoints if c.label in labels]
        if not found:
            raise UserError("no checkpoint is chosen: tick one or more")
        return found

    def caption(self, photo: Image.Image, checkpoint: Checkpoint, options: Options) -> Caption:
        """What a checkpoint says of an RGB photo. Raises UserError for impossible settings."""
        settings = options.decoding_settings()
        prepare = preprocessing_of(checkpoint.config).evaluation
        image = prepare(photo).to(checkpoint.device)  # (3, S, S)
        with self._lock, prompted(checkpoint, options.prompt, settings):
            torch.manual_seed(options.seed)
            told = caption_word_by_word(checkpoint.captioner, image, settings)
            said = {**options.said(), "prompt": checkpoint.captioner.prompt}
        return Caption(checkpoint, told, said)


def json_lines(records: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
