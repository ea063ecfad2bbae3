"""What a reward declares, receives and returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captioning.data.annotations import ImageId
from captioning.metrics.options import Options


class Sampled(NamedTuple):
    """A sampled caption; ended: whether it has an end token, or was cut off."""

    text: str
    ended: bool


class TrainingImages(NamedTuple):
    """The images that are trained on: their captions as written, their files; the run's device."""

    captions: Mapping[ImageId, Sequence[str]]
    files: Mapping[ImageId, Path]
    device: str


class Reward(ABC):
    """A number for each caption, the higher the better.

    title: in messages and reports; Options: its configuration keys; required: the options that must
    differ from their defaults; on_device: whether a model computes it on the run's device, and so
    in the run's own process.
    """

    title: str
    Options: type[Options] = Options
    required: tuple[str, ...] = ()
    on_device = False

    def __init__(self, images: TrainingImages, **options: Any):
        self.options = self.Options.checked(options)
        self.prepare(images)

    @abstractmethod
    def prepare(self, images: TrainingImages) -> None:
        """Read files and load models. All processes call it together. Raises UserError."""

    @abstractmethod
    def __call__(
        self, image_ids: Sequence[ImageId], captions: Sequence[Sequence[Sampled]]
    ) -> np.ndarray:
        """float64 (B, k), for k captions of each of B images."""
