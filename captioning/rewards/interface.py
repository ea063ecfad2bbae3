"""Defines the interface of rewards: what a reward declares, receives and returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning.data.annotations import ImageId, Sample


class Sampled(NamedTuple):
    """A sampled caption. ended: True if it has an end token, False if it was cut off."""

    text: str
    ended: bool


class TrainingImages(NamedTuple):
    """The untokenised captions and the files of the training images, and the device for models."""

    captions: Mapping[ImageId, Sequence[str]]
    files: Mapping[ImageId, Path]
    device: str

    @classmethod
    def from_samples(
        cls, samples: Sequence[Sample], image_root: str, device: str
    ) -> "TrainingImages":
        """Make TrainingImages from the samples of the training split."""
        captions = {sample.image_id: sample.captions for sample in samples}
        files = {sample.image_id: Path(image_root, sample.image) for sample in samples}
        return cls(captions, files, device)


class Reward(ABC):
    """Computes a number for each caption; higher is better.

    - title: for messages and reports
    - options: {name: `captioning.metrics.base.option`}, the reward's configuration keys
    - required: the options that must be set

    config: has the options as attributes.
    """

    title: str
    options: Mapping[str, tuple[Any, Any]] = {}
    required: tuple[str, ...] = ()

    def __init__(self, images: TrainingImages, config: Any = None):
        self.config = config
        self.prepare(images)

    @abstractmethod
    def prepare(self, images: TrainingImages) -> None:
        """Read files and load models. All ranks call it, so it may broadcast. Raises UserError."""

    @abstractmethod
    def __call__(
        self, image_ids: Sequence[ImageId], captions: Sequence[Sequence[Sampled]]
    ) -> np.ndarray:
        """Return rewards, float64 (B, k), of k captions for each of B images."""
