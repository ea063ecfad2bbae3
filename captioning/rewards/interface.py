"""What a reward is given and what it returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from captioning.data.annotations import ImageId


class Said(NamedTuple):
    """A caption that a captioner drew; ended: whether it came to its end, or was cut off."""

    text: str
    ended: bool


class TrainingImages(NamedTuple):
    """What rewards may know of the images that are trained on.

    captions: as they were written; files: where the images are; facts_file, clip_model, device:
    the configuration's.
    """

    captions: Mapping[ImageId, Sequence[str]]
    files: Mapping[ImageId, Path]
    facts_file: Optional[Path]
    clip_model: str
    device: str


class Reward(ABC):
    """A number for each caption, the more the better. All processes make theirs together, which
    raises UserError for a file that is missing or wrong.

    on_device: whether a model computes it on the run's device, and so in the run's own process.
    """

    on_device = False

    @abstractmethod
    def __init__(self, images: TrainingImages): ...

    @abstractmethod
    def __call__(
        self, image_ids: Sequence[ImageId], captions: Sequence[Sequence[Said]]
    ) -> np.ndarray:
        """float64 (B, k), of k captions of each of B images."""
