"""Defines and validates the decoding settings that visitors can choose, in the page and the API."""

from typing import Annotated, Any, Literal, Optional

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.checkpoints import Checkpoint
from captioning.config import explained
from captioning.config.rerankers import build_reranking
from captioning.runtime.errors import UserError, value_errors_as_user_errors
from decoding import DecodingSettings
from decoding.rerank import Reranking

# Upper limits, so that a caption cannot take too long.
LIMITS = {"num_beams": 10, "max_length": 120, "num_candidates": 50, "guidance_scale": 5}
# Fields that have an effect only with sampling or reranking.
SAMPLING_FIELDS = {"top_p", "top_k", "temperature", "min_p", "typical_p", "seed"}
# Fields that have no effect with their default values. They are recorded only with other values.
OFF_BY_DEFAULT = {"no_repeat_ngram_size", "min_p", "typical_p", "guidance_scale"}
# Fields that have an effect only with reranking.
RERANKING_FIELDS = {"rerank", "num_candidates", "rerank_weight", "details"}
Length = Annotated[int, Field(ge=0, le=LIMITS["max_length"])]


class Options(BaseModel):
    """Decoding settings. Most fields have the names that transformers uses.

    prompt: the text that a caption starts with; None for the checkpoint's own prompt. seed: for
    sampling; the same seed gives the same caption. rerank: how the caption is selected from
    `num_candidates` samples: "mmi" for mutual information, "mbr" for minimum Bayes risk, None for
    no reranking. details: whether the API's answer lists all candidates of reranking.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sample: bool = False
    num_beams: int = Field(3, ge=1, le=LIMITS["num_beams"])
    min_length: Length = 1
    max_length: Length = Field(40, ge=1)
    top_p: float = Field(0.9, gt=0, le=1)
    top_k: int = Field(50, ge=0, le=100_000)
    temperature: float = Field(1.0, ge=0.05, le=5)
    repetition_penalty: float = Field(1.0, ge=0.2, le=5)
    length_penalty: float = Field(1.0, ge=-5, le=5)
    no_repeat_ngram_size: Length = 0
    min_p: float = Field(0.0, ge=0, le=1)
    typical_p: float = Field(1.0, gt=0, le=1)
    guidance_scale: float = Field(1.0, ge=0, le=LIMITS["guidance_scale"])
    seed: int = Field(0, ge=0, lt=2**32)
    prompt: Optional[str] = Field(None, max_length=200)
    rerank: Optional[Literal["mmi", "mbr"]] = None
    num_candidates: int = Field(20, ge=2, le=LIMITS["num_candidates"])
    rerank_weight: float = Field(0.5, ge=0, le=1)
    details: bool = False

    def decoding_settings(self) -> DecodingSettings:
        """Return the settings for decoding. Raises UserError if min_length is above max_length."""
        with value_errors_as_user_errors():
            return DecodingSettings(
                **self.model_dump(include=set(DecodingSettings.__dataclass_fields__))
            )

    def reranking(self) -> Optional[Reranking]:
        """Return the settings of reranking; None without reranking or with a weight of 0."""
        return build_reranking(self, self.num_candidates)

    def unused(self) -> set[str]:
        """Return the names of settings that have no effect, given the other settings."""
        reranking = self.reranking()
        unused = {"num_beams"} if self.sample or reranking else {*SAMPLING_FIELDS}
        unused |= {"details"} if reranking else RERANKING_FIELDS
        if reranking and reranking.rerank_weight is None:
            unused.add("rerank_weight")
        return unused

    def effective_settings(self) -> dict[str, Any]:
        """Return the settings that have an effect. They are recorded with each caption."""
        disabled = {
            name
            for name in OFF_BY_DEFAULT
            if getattr(self, name) == getattr(DecodingSettings, name)
        }
        return self.model_dump(exclude=self.unused() | disabled)


def read_options(values: dict[str, Any]) -> Options:
    """Return validated settings. Raises UserError for an unknown name or an invalid value.

    values: {field of `Options`: value}. A value may be a string, as in a URL.
    """
    try:
        return Options(**values)
    except ValidationError as error:
        raise UserError(explained(error, values)) from None


def page_defaults(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the decoding settings in a checkpoint's configuration, lowered to LIMITS if above."""
    run_settings = vars(checkpoint.config.decoding_settings())
    values = {name: run_settings[name] for name in Options.model_fields if name in run_settings}
    return {name: min(value, LIMITS.get(name, value)) for name, value in values.items()}
