"""The interface of every metric: what an evaluator declares, receives and returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

from captioning.data.caption_files import ImageId
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.options import Options
from captioning.metrics.tokenizer import tokenize
from captioning.runtime.errors import UserError


@dataclass(frozen=True)
class Shown:
    """How the report's comparison shows a metric: what it means, in one clause, and value * factor
    with its own title, unit and decimals (None: those of the metric)."""

    meaning: str
    title: Optional[str] = None
    unit: str = ""
    decimals: Optional[int] = None
    factor: float = 1.0


@dataclass(frozen=True)
class Metric:
    """name: in files of scores; title, decimals: in tables; references: whether it needs them;
    report: None where the report lists it among the other scores."""

    name: str
    title: str
    decimals: int = 3
    references: bool = False
    report: Optional[Shown] = None


@dataclass(frozen=True)
class Settings:
    """What the evaluators of a program share; the rest are their `Options`.

    images: the file of each image that may be scored; image_root: the folder that the paths of an
    annotation file start in; cache_dir: None for the user's cache; device: as torch names it.
    """

    images: Optional[Mapping[ImageId, Path]] = None
    image_root: Optional[Path] = None
    cache_dir: Optional[Path] = None
    device: str = "cpu"
    batch_size: int = 64


@dataclass(frozen=True)
class CaptionSet:
    """One caption and one or more references of each image, under the same ids in one order.

    shared: what one evaluator loads or computes for the others.
    """

    predictions: Mapping[ImageId, str]
    references: Mapping[ImageId, Sequence[str]]
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ids(self) -> list[ImageId]:
        return list(self.predictions)

    @cached_property
    def tokenized(self) -> tuple[list[str], list[list[str]], str]:
        """N captions and N groups of references as PTB tokens joined by spaces; the tokeniser."""
        everything = {i: [text, *self.references[i]] for i, text in self.predictions.items()}
        tokens, tokenizer = tokenize(everything)
        groups = tokens.values()
        return [texts[0] for texts in groups], [texts[1:] for texts in groups], tokenizer


@dataclass(frozen=True)
class Result:
    """What an evaluator returns for N captions.

    metrics: {metric: its estimate}; per_image: {metric: N values in the captions' order, None for
    a caption without one}; settings: {name: what is recorded beside the scores}; skipped: {metric:
    why it was not computed}; details: {name: N values that JSON can hold, or None}, which are no
    scores.
    """

    metrics: dict[str, Estimate]
    per_image: dict[str, Sequence[Optional[float]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    details: dict[str, Sequence[Any]] = field(default_factory=dict)


class Evaluator(ABC):
    """Metrics that are computed together and chosen by one name, see `registry.py`.

    metrics: all that it can compute; `names`: those that it computes with its options;
    Options: its configuration keys; required: the options that must differ from their defaults;
    needs_images: whether it needs `Settings.images`; model: the option that names the model it
    runs; on_every_rank: whether all processes have to call `evaluate` and share its work (rank 0
    has the result); costly: whether it may cost money, so that it only runs where a user names it.
    If `evaluate` raises, only its own metrics are skipped.
    """

    metrics: tuple[Metric, ...]
    Options: type[Options] = Options
    required: tuple[str, ...] = ()
    needs_images = False
    model: Optional[str] = None
    on_every_rank = False
    costly = False

    def __init__(self, settings: Optional[Settings] = None, **options: Any):
        self.settings, self.options = settings or Settings(), self.Options.checked(options)
        self.names = tuple(metric.name for metric in self.metrics)
        self.prepare()

    def prepare(self) -> None:  # noqa: B027
        """Read files and set `names`, once settings and options are there. Raises UserError."""

    def unavailable(self) -> dict[str, str]:
        """Return {metric: why this machine cannot compute it}; called before captions are made."""
        try:
            self.check()
        except UserError as error:
            return dict.fromkeys(self.names, str(error))
        return {}

    def check(self) -> None:
        """Raise UserError where something is missing that all its metrics need."""
        if self.model:
            from captioning.metrics.model_files import find_model

            find_model(self.model, getattr(self.options, self.model))

    @abstractmethod
    def evaluate(self, captions: CaptionSet) -> Result:
        """Score the captions, of which there is at least one."""


@dataclass(frozen=True)
class Scores:
    """The results of several evaluators.

    metrics: {metric: its estimate}; per_image: {image id: {metric: value}} of every image that was
    scored; details: {image id: {name: value}}; settings and skipped: see Result.
    """

    metrics: dict[str, Estimate]
    per_image: dict[ImageId, dict[str, Optional[float]]]
    settings: dict[str, Any]
    skipped: dict[str, str]
    details: dict[ImageId, dict[str, Any]] = field(default_factory=dict)
