"""Defines the interface of evaluators: what an evaluator declares, receives and returns."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

from captioning.data.caption_files import ImageId, image_of, of_images
from captioning.metrics.bootstrap import Estimate, mean_estimate, ratio_estimate
from captioning.metrics.options import Options, missing_options
from captioning.metrics.registry import DEFAULT_EVALUATORS, EVALUATOR_METRICS, EVALUATORS
from captioning.metrics.tokenizer import tokenize
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load


@dataclass(frozen=True)
class Settings:
    """The settings that all evaluators share. Those of a single evaluator are in its `Options`.

    images: {image id: file}. image_root: paths in annotation files are relative to this folder.
    cache_dir: the folder for cached features; None for the user's cache folder. device: a torch
    device, such as "cuda:0".
    """

    images: Optional[Mapping[ImageId, Path]] = None
    image_root: Optional[Path] = None
    cache_dir: Optional[Path] = None
    device: str = "cpu"
    batch_size: int = 64


@dataclass(frozen=True)
class CaptionSet:
    """One caption and one or more references per image. Both have the same ids in the same order.

    shared: {key: object} of objects that one evaluator creates and other evaluators reuse, such as
    the CLIP model.
    """

    predictions: Mapping[ImageId, str]
    references: Mapping[ImageId, Sequence[str]]
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ids(self) -> list[ImageId]:
        return list(self.predictions)

    @property
    def texts(self) -> list[str]:
        return list(self.predictions.values())

    @cached_property
    def tokenized(self) -> tuple[list[str], list[list[str]], str]:
        """Tokenised texts: N captions, N lists of references, and the name of the tokeniser.

        Each text consists of PTB tokens joined by spaces.
        """
        everything = {i: [text, *self.references[i]] for i, text in self.predictions.items()}
        tokens, tokenizer = tokenize(everything)
        groups = tokens.values()
        return [texts[0] for texts in groups], [texts[1:] for texts in groups], tokenizer


@dataclass(frozen=True)
class Scores:
    """The scores of N captions, by one or several evaluators.

    - metrics: {metric: estimate for the whole set}
    - per_caption: {metric: N values in the order of the captions}; None for a caption without a
      value
    - settings: {name: value}, recorded with the scores
    - skipped: {metric: why it was not computed}
    - details: {name: N JSON values} that an evaluator reports besides scores; None for a
      caption without a value
    """

    metrics: dict[str, Estimate]
    per_caption: dict[str, Sequence[Optional[float]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    details: dict[str, Sequence[Any]] = field(default_factory=dict)

    @classmethod
    def from_ratios(cls, counts: dict[str, tuple[Sequence, Sequence]], **others: Any) -> "Scores":
        """Return scores that are shares in per cent: sum(numerators) / sum(denominators).

        counts: {metric: (numerators, denominators)}, both with one number per caption. others: the
        other fields of Scores.
        """
        metrics, per_caption = {}, {}
        for name, (numerators, denominators) in counts.items():
            metrics[name] = ratio_estimate(numerators, denominators, scale=100)
            pairs = zip(numerators, denominators)
            per_caption[name] = [100 * a / b if b else None for a, b in pairs]
        return cls(metrics, per_caption, **others)

    @classmethod
    def from_means(
        cls, per_caption: dict[str, Sequence[Optional[float]]], **others: Any
    ) -> "Scores":
        """Return scores that are means over captions. others: the other fields of Scores."""
        return cls(
            {name: mean_estimate(values) for name, values in per_caption.items()},
            per_caption,
            **others,
        )

    def update(self, others: "Scores") -> None:
        """Add the scores of another evaluator on the same captions."""
        for each in fields(self):
            getattr(self, each.name).update(getattr(others, each.name))


class Evaluator(ABC):
    """Computes one or more metrics. A user chooses it by its name in `metrics.registry`.

    If `evaluate` raises, only the metrics of this evaluator are skipped.

    - name: the evaluator's name in the registry
    - metric_names: the names of the metrics that it computes with its options
    - Options: its configuration keys
    - required: the options that must be set
    - needs_images: whether `Settings.images` is needed
    - on_every_rank: whether all processes have to call `evaluate`; ranks other than 0 return no
      scores
    - costly: whether a call may cost money; the report does not score human captions with it
    """

    name: str
    Options: type[Options] = Options
    required: tuple[str, ...] = ()
    needs_images = False
    on_every_rank = False
    costly = False

    def __init__(self, settings: Optional[Settings] = None, **options: Any):
        self.settings, self.options = settings or Settings(), self.Options.checked(options)
        self.metric_names = EVALUATOR_METRICS[self.name]
        if problem := missing_options(self, self.options):
            raise UserError(f"metrics: {self.name} {problem}")
        if self.needs_images and self.settings.images is None:
            raise UserError(
                f"metrics: {self.name} needs the images: give their folder with --images"
            )
        self.prepare()

    def prepare(self) -> None:  # noqa: B027
        """Read files, and set `metric_names` to the metrics that the options leave.

        The constructor calls this method last. Raises UserError.
        """

    def unavailable(self) -> dict[str, str]:
        """Return {metric: why this machine cannot compute it}.

        Programs call this before captioning starts, which may take hours.
        """
        try:
            self.check_requirements()
        except UserError as error:
            return dict.fromkeys(self.metric_names, str(error))
        return {}

    def check_requirements(self) -> None:  # noqa: B027
        """Raise UserError if something is missing that all metrics of this evaluator need."""

    @abstractmethod
    def evaluate(self, captions: CaptionSet) -> Scores:
        """Return the scores of a set with at least one caption."""


def entries_of(
    ids: Iterable[ImageId], known: Mapping[ImageId, Any], file: str
) -> dict[ImageId, Any]:
    """Return {image id: its entry in `known`}. Ids are matched as in `of_images`.

    known: the content of a file, {image id: entry}. file: its name, for errors. Raises UserError
    for an image without an entry.
    """
    found = of_images(ids, known)
    for image_id, entry in found.items():
        if not entry:
            raise UserError(
                f"{file} has no entry for image {image_of(image_id)!r}: add one, or leave the "
                "image out"
            )
    return found


def options_of(names: Iterable[str], config: Any) -> dict[str, Any]:
    """Return {option: value} of the named evaluators, see `Options.from_config`."""
    classes = [load(EVALUATORS[name]).Options for name in names]
    return {name: value for each in classes for name, value in each.from_config(config).items()}


def build_evaluators(
    names: Iterable[str] = DEFAULT_EVALUATORS,
    settings: Optional[Settings] = None,
    **options: Any,
) -> list[Evaluator]:
    """Return the named evaluators, without duplicates.

    options: the options of all these evaluators; each evaluator gets the options that it declares.
    Raises UserError for an impossible value, a missing option or file, and missing images.
    """
    classes = [load(EVALUATORS[name]) for name in dict.fromkeys(names)]
    evaluators = []
    for evaluator_class in classes:
        declared = options.keys() & evaluator_class.Options.model_fields.keys()
        evaluators.append(evaluator_class(settings, **{name: options[name] for name in declared}))
    return evaluators
