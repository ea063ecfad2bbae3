"""What is asked of the objective from hidden states besides hidden states and the head."""

import ast
from functools import lru_cache
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from smile.alternatives import ALTERNATIVES, TokenLoss
from smile.head import Transform
from smile.sharded import Shards

# Whether the original's training scores the first token of a caption over the whole vocabulary.
FIRST_TOKEN_MLE = {"smile": True, "random": False, "reverse": True}


def scores_first_token(name: str, given: Optional[bool] = None) -> bool:
    """Whether the objective does; given: the run's `first_token_mle`, None as in the original."""
    as_it_was = FIRST_TOKEN_MLE.get(name)
    return bool(as_it_was if given is None else given and as_it_was is not None)


class Mixture(NamedTuple):
    """Which losses, and their settings: those of `Objective`, by the same names.

    alternatives_text: the alternatives' parameters by name, as text.
    """

    weights: dict[str, float]
    label_smoothing: float
    first_token_mle: Optional[bool]
    pad_token_id: Optional[int]
    ignore_index: int
    alternatives_text: str = "{}"

    def alternatives(self) -> dict[str, TokenLoss]:
        """By name, in the order of the weights."""
        return _built(self.alternatives_text)

    def text(self) -> str:
        """As an operator can take it; compiled programs make it while they are traced."""
        weights = ", ".join(f"{name!r}: {weight!r}" for name, weight in self.weights.items())
        return (
            f"{{{weights}}}, {self.label_smoothing!r}, {self.first_token_mle!r}, "
            f"{self.pad_token_id!r}, {self.ignore_index!r}, {self.alternatives_text!r}"
        )

    def first_by_mle(self) -> list[str]:
        """The objectives of which first tokens are scored over the whole vocabulary."""
        return [name for name in self.weights if scores_first_token(name, self.first_token_mle)]

    @classmethod
    def from_text(cls, text: str) -> "Mixture":
        return cls(*ast.literal_eval(text))


@lru_cache(maxsize=64)
def _built(parameters: str) -> dict[str, TokenLoss]:
    """Every step asks for the same."""
    given = ast.literal_eval(parameters)
    return {name: ALTERNATIVES[name](**of_it) for name, of_it in given.items()}


class LossInputs(NamedTuple):
    """What has no gradient: labels (B, N); words (B, N, R), drawn for random subsetting; segments
    and weights (B, N), each of the three perhaps None; which losses, and how they are reduced; what
    is made of logits, the dtype in which they are computed, which of hidden states, weight and
    bias get a gradient, and what several processes share, if they do."""

    labels: Tensor
    words: Optional[Tensor]
    segments: Optional[Tensor]
    weights: Optional[Tensor]
    mixture: Mixture
    reduction: str
    transform: Transform
    dtype: torch.dtype
    wanted: tuple[bool, bool, bool]
    shards: Optional[Shards]

    def waits(self) -> bool:
        """Whether gradients are made in backward. The range of float16 needs the scale of the
        loss, and losses that are not summed need theirs, which backward alone knows."""
        return self.dtype == torch.float16 or self.reduction == "none"
