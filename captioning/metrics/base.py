"""The interface of metrics: what an evaluator declares, receives and returns."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

from pydantic import Field

from captioning.data.caption_files import ImageId
from captioning.metrics import DEFAULT_EVALUATORS, EVALUATORS
from captioning.metrics.intervals import Estimate, mean_estimate, ratio_estimate
from captioning.metrics.options import checked_options, missing_options, option_files
from captioning.metrics.tokenizer import tokenize
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load


class Metric(NamedTuple):
    """The name of a metric, and how tables and the report show the metric.

    - name: the key in score files
    - title, decimals: used in tables
    - direction: "higher" or "lower", whichever is better; "" if neither
    - meaning: explains the metric in one clause. The report's table that compares runs has the
      metrics with a meaning; it lists others among the other scores
    - unit, factor: the report shows value * factor in `unit`
    - report_title, report_decimals: replace title and decimals in the report
    - needs_references: whether the metric can be computed only with references
    - only_english: whether captions in other languages have no score
    """

    name: str
    title: str
    decimals: int = 1
    direction: str = "higher"
    meaning: str = ""
    unit: str = ""
    report_title: Optional[str] = None
    report_decimals: Optional[int] = None
    factor: float = 1.0
    needs_references: bool = False
    only_english: bool = False

    def in_report(self) -> "Metric":
        """Return the metric with the title and decimals that the report shows."""
        decimals = self.decimals if self.report_decimals is None else self.report_decimals
        return self._replace(title=self.report_title or self.title, decimals=decimals)

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title


def option(kind: Any, default: Any, meaning: str, **limits: Any) -> tuple[Any, Any]:
    """Return an option, which is a configuration key and a flag of captioning.evaluate.

    - kind: the type of the values
    - meaning: one clause for --help and errors
    - limits: of pydantic's Field, such as gt=0
    """
    return Annotated[kind, "scoring"], Field(default, description=meaning, **limits)


@dataclass(frozen=True)
class Settings:
    """What all evaluators share besides options.

    - images: {image id: file}
    - image_root: paths in annotation files are relative to this folder
    - cache_dir: the folder for cached features; None for the user's cache folder
    - device: a torch device, such as "cuda:0"
    - annotations: maps the name of a run's split to its annotation files; None without a run
    - language: of the captions, an ISO 639-1 code
    """

    images: Optional[Mapping[ImageId, Path]] = None
    image_root: Optional[Path] = None
    cache_dir: Optional[Path] = None
    device: str = "cpu"
    batch_size: int = 64
    annotations: Optional[Callable[[str], list[Path]]] = None
    language: str = "en"


@dataclass(frozen=True)
class CaptionSet:
    """One caption and one or more references per image. Both have the same ids in the same order.

    shared: {key: object} of objects that one evaluator creates and other evaluators reuse, such as
    the CLIP model.
    """

    predictions: Mapping[ImageId, str]
    references: Mapping[ImageId, Sequence[str]]
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    language: str = "en"

    @property
    def ids(self) -> list[ImageId]:
        return list(self.predictions)

    @property
    def texts(self) -> list[str]:
        return list(self.predictions.values())

    @cached_property
    def tokenized(self) -> tuple[list[str], list[list[str]], str]:
        """Tokenised texts: N captions, N lists of references, and the name of the tokeniser.

        Each text consists of tokens joined by spaces, see `captioning.metrics.tokenizer`.
        """
        everything = {i: [text, *self.references[i]] for i, text in self.predictions.items()}
        tokens, tokenizer = tokenize(everything, self.language)
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

    metrics: dict[str, Estimate] = field(default_factory=dict)
    per_caption: dict[str, Sequence[Optional[float]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    details: dict[str, Sequence[Any]] = field(default_factory=dict)

    @classmethod
    def attempt(
        cls, metrics: Iterable[str], compute: Callable[..., "Scores"], *arguments: Any
    ) -> "Scores":
        """Return `compute(*arguments)`; after an error, scores that skip the metrics.

        Captioning may have taken hours: an error in one metric must not lose the others' scores.
        """
        try:
            return compute(*arguments)
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else repr(error)
            return cls(skipped=dict.fromkeys(metrics, reason))

    @classmethod
    def from_ratios(cls, counts: dict[str, tuple[Sequence, Sequence]], **others: Any) -> "Scores":
        """Return scores that are shares in per cent: sum(numerators) / sum(denominators).

        counts: {metric: (numerators, denominators)}, both with one number per caption. others: the
        other fields of Scores.
        """
        metrics = {name: ratio_estimate(*pair, scale=100) for name, pair in counts.items()}
        shares = {
            name: [100 * a / b if b else None for a, b in zip(*pair)]
            for name, pair in counts.items()
        }
        return cls(metrics, shares, **others)

    @classmethod
    def from_means(
        cls, per_caption: dict[str, Sequence[Optional[float]]], **others: Any
    ) -> "Scores":
        """Return scores that are means over captions. others: the other fields of Scores."""
        metrics = {name: mean_estimate(values) for name, values in per_caption.items()}
        return cls(metrics, per_caption, **others)

    def update(self, others: "Scores") -> None:
        """Add the scores of another evaluator on the same captions."""
        for each in fields(self):
            getattr(self, each.name).update(getattr(others, each.name))


class Evaluator(ABC):
    """Computes one or more metrics. If `evaluate` raises, only these metrics are skipped.

    - metrics: what it computes
    - options: {name: `option`}, its configuration keys. A key that several evaluators use is
      declared once and imported by the others
    - required: the options that must be set
    - needs_images: whether `Settings.images` is needed
    - costly: whether a call may cost money; the report does not score human captions with it

    config: has the options as attributes.
    """

    metrics: tuple[Metric, ...]
    options: Mapping[str, tuple[Any, Any]] = {}
    required: tuple[str, ...] = ()
    needs_images = False
    costly = False

    def __init__(self, config: Any, settings: Settings):
        self.config, self.settings = config, settings
        self.prepare()

    def prepare(self) -> None:  # noqa: B027
        """Read files, and set `metrics` to those that the options leave. Raises UserError."""

    def skipped(self, has_references: bool = True) -> dict[str, str]:
        """Return {metric: why captions like these have no score}."""
        language, reasons = self.settings.language, {}
        for metric in self.metrics:
            if metric.needs_references and not has_references:
                reasons[metric.name] = "without references"
            elif metric.only_english and language != "en":
                reasons[metric.name] = f"only for English, not for language: {language}"
        return reasons

    def unavailable(self) -> dict[str, str]:
        """Return {metric: why this machine cannot compute it}, including those of `skipped`.

        Programs call this before captioning starts, which may take hours.
        """
        try:
            self.check_requirements()
        except UserError as error:
            return {**dict.fromkeys(self.metric_names, str(error)), **self.skipped()}
        return self.skipped()

    def check_requirements(self) -> None:  # noqa: B027
        """Raise UserError if something is missing that all metrics of this evaluator need."""

    @abstractmethod
    def evaluate(self, captions: CaptionSet) -> Scores:
        """Return the scores of a set with at least one caption."""

    @property
    def metric_names(self) -> list[str]:
        return [metric.name for metric in self.metrics]

    def files(self, key: str) -> list[Path]:
        """Return the files that an option names, see `option_files`."""
        return option_files(self.config, key)


def evaluator_classes(names: Iterable[str] = tuple(EVALUATORS)) -> dict[str, type[Evaluator]]:
    """Return {evaluator: its class} without duplicates. Imports their modules."""
    return {name: load(EVALUATORS[name]) for name in names}


def build_evaluators(
    names: Iterable[str] = DEFAULT_EVALUATORS,
    settings: Optional[Settings] = None,
    config: Any = None,
    **options: Any,
) -> list[Evaluator]:
    """Return the named evaluators, without duplicates.

    config: has their options as attributes. Without it, `options` are {option: value}. Raises
    UserError for an impossible value, a missing option or file, and missing images.
    """
    settings, kinds = settings or Settings(), evaluator_classes(names)
    if config is None:
        config = checked_options(kinds.values(), **options)
    evaluators = []
    for name, kind in kinds.items():
        if problem := missing_options(kind, config):
            raise UserError(f"metrics: {name} {problem}")
        if kind.needs_images and settings.images is None:
            raise UserError(f"metrics: {name} needs the images: give their folder with --images")
        evaluators.append(kind(config, settings))
    return evaluators


_PUBLISHED = ("cap_len", "lex_div", "R@1", "R@5", "CLIPScore", "PPL")  # columns of SMILE's paper


@cache
def all_metrics() -> dict[str, Metric]:
    """Return {name: metric} in the order of columns in tables. Imports all evaluators' modules."""
    kinds = evaluator_classes().values()
    named = {metric.name: metric for kind in kinds for metric in kind.metrics}
    return {name: named[name] for name in (*_PUBLISHED, *named)}


def metric_of(name: str) -> Metric:
    """Return the metric of this name. An unknown name becomes a metric with the name as title."""
    return all_metrics().get(name) or Metric(name, name, decimals=3)
