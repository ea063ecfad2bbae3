"""What an evaluator is given and what it returns: the interface of every metric."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from captioning.data.caption_files import ImageId
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.model_files import CLIP_MODEL, find_model
from captioning.metrics.tokenizer import tokenize
from captioning.runtime.errors import UserError

PPL_MODEL = "gpt2"


@dataclass(frozen=True)
class Settings:
    """What the evaluators are asked for, each by what concerns it; the program's options too.

    images: the file of each image that may be scored, for clipscore and retrieval, which the
    program finds itself; pool_root: where the images of a pool's rows start, see `read_pool`;
    cache_dir: None for the user's cache; device: as torch names it.
    """

    spice: Annotated[bool, "compute SPICE too, which is slow"] = False
    spice_timeout: Annotated[float, "in seconds"] = 3600.0
    spice_heap: Annotated[str, "the most memory that its Java takes"] = "8G"
    train_captions: Annotated[Optional[Path], "what it was trained on, for diversity"] = None
    facts_file: Annotated[Optional[Path], "what is in each image, for facts"] = None
    objects: Annotated[
        tuple[Path, ...],
        "what is in each image, for chair: COCO's instances or {image id: [object]}",
    ] = ()
    synonyms: Annotated[Optional[Path], "words of objects, for chair (default: published)"] = None
    singular: Annotated[
        Literal["pattern", "wordnet"], "of chair's words: as published, or WordNet's lemmas"
    ] = "pattern"
    images: Annotated[
        Optional[Mapping[ImageId, Path]],
        "the images' folder, or a JSON file {image id: image file}",
    ] = None
    clip_model: Annotated[str, "a hub id, a folder, or a state dict in OpenAI's layout"] = (
        CLIP_MODEL
    )
    ppl_model: Annotated[str, "a hub id or a folder"] = PPL_MODEL
    judge_url: Annotated[
        Optional[str], "for clair: a server with OpenAI's chat interface, as https://host/v1"
    ] = None
    judge_model: Annotated[Optional[str], "the name of a model there"] = None
    pool: Annotated[Optional[Path], "further images for retrieval: a folder, a list or .npz"] = None
    pool_root: Optional[Path] = None
    cache_dir: Annotated[Optional[Path], "where what metrics compute or fetch is kept"] = None
    device: Annotated[str, "of models: auto, cpu, cuda, cuda:1"] = "cpu"
    batch_size: Annotated[int, "what a model takes at once"] = 64


@dataclass(frozen=True)
class CaptionSet:
    """One caption of each image, and one or more human ones under the same ids, in one order.

    shared: what evaluators make of the captions, or load, for each other.
    """

    predictions: Mapping[ImageId, str]
    references: Mapping[ImageId, Sequence[str]]
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ids(self) -> list[ImageId]:
        return list(self.predictions)

    @cached_property
    def tokenized(self) -> tuple[list[str], list[list[str]], str]:
        """N captions and N groups of references as PTB tokens joined by spaces; who made them."""
        everything = {i: [text, *self.references[i]] for i, text in self.predictions.items()}
        tokens, tokenizer = tokenize(everything)
        groups = tokens.values()
        return [texts[0] for texts in groups], [texts[1:] for texts in groups], tokenizer


@dataclass(frozen=True)
class Result:
    """What an evaluator says of N captions.

    metrics: {metric: its estimate}; per_image: {metric: N values in the captions' order, None for
    a caption that has none}, for metrics that a single caption has; settings: {name: what has to
    be known beside the scores}; skipped: {metric: why it was not computed}; details: {name: N
    values that JSON can hold}, what there is to tell of a caption that is no score, None likewise.
    """

    metrics: dict[str, Estimate]
    per_image: dict[str, Sequence[Optional[float]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    details: dict[str, Sequence[Any]] = field(default_factory=dict)


class Evaluator(ABC):
    """Metrics that are computed together and chosen by one name, see `captioning.metrics.registry`.

    names: those of its metrics, under the settings it was made with; reference_metrics: those of
    them that compare captions with references; model: the setting that names the model it runs;
    on_every_rank: whether all processes have to call `evaluate`, sharing its work, of which rank 0
    has the result; costly: whether somebody may be paid for it, so that it runs only where it was
    asked for. Making one raises UserError for a file that is missing or wrong. Whatever `evaluate`
    raises costs its own metrics alone.
    """

    names: tuple[str, ...]
    reference_metrics: tuple[str, ...] = ()
    model: Optional[str] = None
    on_every_rank = False
    costly = False

    def __init__(self, settings: Settings):
        self.settings = settings

    def unavailable(self) -> dict[str, str]:
        """Return {metric: why this machine cannot compute it}; asked before captions are made."""
        try:
            self.check_model()
        except UserError as error:
            return dict.fromkeys(self.names, str(error))
        return {}

    def check_model(self) -> None:
        """Raise UserError where the files of the model it runs, if any, are missing or wrong."""
        if self.model:
            find_model(self.model, getattr(self.settings, self.model))

    @abstractmethod
    def evaluate(self, captions: CaptionSet) -> Result:
        """Score the captions, of which there is at least one."""


@dataclass(frozen=True)
class Scores:
    """The results of several evaluators.

    metrics: {metric: its estimate}; per_image: {image id: {metric: value}}, of every image that was
    scored; details: {image id: {name: value}}; settings and skipped: see Result.
    """

    metrics: dict[str, Estimate]
    per_image: dict[ImageId, dict[str, Optional[float]]]
    settings: dict[str, Any]
    skipped: dict[str, str]
    details: dict[ImageId, dict[str, Any]] = field(default_factory=dict)
