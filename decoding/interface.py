"""Defines the settings of decoding, the type of a captioner's step function, and the results."""

from dataclasses import dataclass
from typing import NamedTuple, Optional, Protocol

from torch import Tensor

# The smallest allowed value of each setting, and the settings that have to be positive.
AT_LEAST = {
    "max_length": 1,
    "min_length": 0,
    "num_beams": 1,
    "num_return": 1,
    "top_k": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    "guidance_scale": 0,
}
ABOVE_0 = ("repetition_penalty", "temperature", "top_p")


class SettingsError(ValueError):
    """A one-line error: a captioner does not support these decoding settings."""


@dataclass(frozen=True)
class DecodingSettings:
    """How captions are generated. Most fields have the names that transformers uses.

    - The method is sampling if `sample`, else beam search if `num_beams` > 1, else greedy decoding.
      BLIP's nucleus sampling is top_p 0.9, top_k 50, repetition_penalty 1.1.
    - max_length, min_length: numbers of tokens, including the prompt.
    - num_return: the number of captions per image, either the best beams or samples.
    - top_p 1 and top_k 0 do not change the distribution; see `decoding.sampling.warp_scores`.
    - no_repeat_ngram_size: no n-gram of this many tokens occurs twice. 0 allows repetition.
    - diversity_penalty: makes the `num_beam_groups` groups of beams differ (arXiv 1610.02424).
    - seeds: for sampling, one seed per prompt. The samples of a prompt then depend only on its seed
      and logits, not on the batch. None samples from torch's global generator.
    - guidance_scale: 1 for none; see `decoding.guided`.

    The constructor raises a one-line ValueError for an impossible value.
    """

    max_length: int = 20
    min_length: int = 5
    num_beams: int = 3
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    num_return: int = 1
    sample: bool = False
    top_p: float = 0.9
    top_k: int = 50
    temperature: float = 1.0
    no_repeat_ngram_size: int = 0
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    guidance_scale: float = 1.0
    seeds: Optional[tuple[int, ...]] = None

    def __post_init__(self):
        for name, minimum in AT_LEAST.items():
            self._require(name, getattr(self, name) >= minimum, f"{minimum} or more")
        for name in ABOVE_0:
            self._require(name, getattr(self, name) > 0, "above 0")
        self._require("top_p", self.top_p <= 1, "1 or less")
        groups = self.num_beam_groups
        if groups > 1 and (self.sample or self.num_beams % groups):
            raise ValueError(
                f"num_beam_groups is {groups} with num_beams {self.num_beams}"
                f"{' and sample' if self.sample else ''}; it must divide num_beams of beam search"
            )
        if self.diversity_penalty and groups == 1:
            raise ValueError(
                f"diversity_penalty is {self.diversity_penalty}, which makes groups of beams "
                "differ; raise num_beam_groups"
            )
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length is {self.min_length}, above max_length, {self.max_length}"
            )
        if not self.sample and self.num_return > self.num_beams:
            raise ValueError(
                f"num_return is {self.num_return} with num_beams {self.num_beams}; "
                "raise num_beams or sample"
            )

    def _require(self, name: str, is_valid: bool, requirement: str) -> None:
        if not is_valid:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be {requirement}")


class Step(Protocol):
    """One step of a captioner's decoder. The captioner keeps the decoder's cache between calls.

    tokens: int64 (b, k, n), the next tokens of b prompts with k rows each. A row is a caption that
    is being generated. rows: int64 (b, k), the index of the row of the previous call that each row
    continues. If the previous call had k' rows per prompt, its row r of prompt p has the index
    p * k' + r. The first call gets None for `rows`, and one row per prompt, (B, 1, n). Prompts may
    be dropped between calls but never change their order. Returns the logits after the last token,
    (b, k, V).
    """

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor: ...


class Decoded(NamedTuple):
    """Captions as token ids, with scores.

    token_ids: int64 (B, num_return, L). A row is the prompt, the caption and `end`, padded with
    `pad`; a caption of `max_length` tokens has no `end`. scores: float64 (B, num_return), the sum
    of log-probabilities divided by length ** length_penalty. The length includes the prompt but not
    `end`.
    """

    token_ids: Tensor
    scores: Tensor


def until_end(tokens: Tensor, end: int) -> Tensor:
    """Return a mask of the tokens up to and including the first `end`: bool (..., n)."""
    ended = (tokens == end).int()
    return ended.cumsum(-1) - ended == 0


def caption_lengths(ids: Tensor, prompt_length: int, end: int) -> Tensor:
    """Return the number of tokens of captions (..., n), with the prompt and without `end`.

    The result is int64 (...). prompt_length: the number of the prompt's tokens.
    """
    return prompt_length + ((ids[..., prompt_length:] == end).cumsum(-1) == 0).sum(-1)


def trimmed(ids: Tensor, prompt_length: int, end: int) -> Tensor:
    """Return captions (..., n) without the positions that are padding in all of them."""
    return ids[..., : int(caption_lengths(ids, prompt_length, end).max()) + 1]


class Generated(NamedTuple):
    """Captions as text and token ids, with scores.

    - captions: B lists of num_return strings. Beams are sorted, the best first; samples are not.
    - token_ids: int64 (B, num_return, L)
    - scores: float64 (B, num_return); see `Decoded`
    - own_scores: with guidance, the scores under the captioner's own distribution, while `scores`
      are under the guided distribution
    - rerank_scores: float64 (B, num_return), a reranker's scores, in descending order

    The last two are None where they do not apply.
    """

    captions: list[list[str]]
    token_ids: Tensor
    scores: Tensor
    own_scores: Optional[Tensor] = None
    rerank_scores: Optional[Tensor] = None
