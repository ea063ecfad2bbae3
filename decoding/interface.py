"""What decoding is told and asks of a decoder, and what it gives back."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Optional, Protocol

from torch import Tensor


@dataclass(frozen=True)
class DecodingSettings:
    """How captions are drawn, under transformers' names. Lengths are in tokens, with the prompt's.

    Beam search with `num_beams` > 1, greedy with 1, sampling with `sample` (BLIP's nucleus
    sampling is top_p 0.9, top_k 50, repetition_penalty 1.1). `num_return` captions an image: the
    best beams, or as many samples. top_p 1, top_k 0, min_p 0 and typical_p 1 leave the distribution
    whole. No `no_repeat_ngram_size` tokens come twice in a caption, if it is not 0. Beams in
    `num_beam_groups` are held apart by `diversity_penalty` (arXiv 1610.02424).

    Raises ValueError, in one line, for a value that means nothing.
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
    min_p: float = 0.0
    typical_p: float = 1.0

    def __post_init__(self):
        at_least = {"max_length": 1, "min_length": 0, "num_beams": 1, "num_return": 1, "top_k": 0}
        at_least.update(no_repeat_ngram_size=0, num_beam_groups=1)
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {least} or more")
        for name in ("repetition_penalty", "temperature", "top_p", "typical_p"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty is {self.length_penalty}; it must be a number")
        for name in ("top_p", "typical_p"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or less")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}; it must be from 0 to 1")
        self._check_groups()
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length is {self.min_length}, above max_length, {self.max_length}"
            )
        if not self.sample and self.num_return > self.num_beams:
            raise ValueError(
                f"num_return is {self.num_return} with num_beams {self.num_beams}; "
                "raise num_beams or sample"
            )

    def _check_groups(self) -> None:
        groups, penalty = self.num_beam_groups, self.diversity_penalty
        if not 0 <= penalty < math.inf:
            raise ValueError(f"diversity_penalty is {penalty}; it must be 0 or more")
        if groups > 1 and (self.sample or self.num_beams % groups):
            raise ValueError(
                f"num_beam_groups is {groups} with num_beams {self.num_beams}"
                f"{' and sample' if self.sample else ''}; groups divide the beams of beam search"
            )
        if penalty and groups == 1:
            raise ValueError(
                f"diversity_penalty is {penalty}, which holds groups of beams apart; raise "
                "num_beam_groups"
            )


class Step(Protocol):
    """One step of a decoder, with the cache that belongs to it.

    tokens: int64 (b, k, n), the tokens to append for k rows of each of b prompts. rows: int64
    (b, k), for each the row of the previous call, counted through as b' * k' + row, that it
    continues; None at the first call, which is (B, 1, prompt). Prompts drop out between calls but
    never change their order. Returns the logits after the last token, (b, k, V).
    """

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor: ...


class Decoded(NamedTuple):
    """token_ids: int64 (B, num_return, L), prompt included, ended by `end`, filled up with `pad`.

    scores: float64 (B, num_return), the sum of log-probabilities divided by length **
    length_penalty, where the length counts the prompt and not `end`.
    """

    token_ids: Tensor
    scores: Tensor


def until_end(tokens: Tensor, end: int) -> Tensor:
    """bool (..., n): which of the tokens (..., n) come no later than the first `end`."""
    ended = (tokens == end).int()
    return ended.cumsum(-1) - ended == 0


class Generated(NamedTuple):
    """captions: B lists of num_return strings, the best beam first, or samples as they were drawn;
    token_ids int64 (B, num_return, L); scores float64 (B, num_return), see `Decoded`."""

    captions: list[list[str]]
    token_ids: Tensor
    scores: Tensor
