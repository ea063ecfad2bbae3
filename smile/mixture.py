"""Settings and inputs of the fused linear loss, without hidden states and the head."""

import ast
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from smile.alternatives import ALTERNATIVES, load
from smile.head import Transform

# Whether the original code scores the first token of a caption over the whole vocabulary.
FIRST_TOKEN_MLE = {"smile": True, "random": False, "reverse": True}


def scores_first_token(name: str, given: Optional[bool] = None) -> bool:
    """Whether the objective `name` scores first tokens over the whole vocabulary.

    given: the setting `first_token_mle`; None for the original's choice.
    """
    original = FIRST_TOKEN_MLE.get(name)
    return bool(original if given is None else given and original is not None)


class Mixture(NamedTuple):
    """The losses of a mixture and their settings, with the names of `Objective`'s arguments.

    alternatives_text: a Python literal of the alternatives' parameters by name.
    """

    weights: dict[str, float]
    label_smoothing: float
    first_token_mle: Optional[bool]
    pad_token_id: Optional[int]
    ignore_index: int
    alternatives_text: str = "{}"

    def alternatives(self) -> dict[str, Any]:
        """The alternatives with a weight, each a `TokenLoss`, by name."""
        built = _built(self.alternatives_text)
        return {name: built[name] for name in self.weights if name in built}

    def text(self) -> str:
        """The mixture as a string, which a custom operator takes. Dynamo can trace this method."""
        weights = ", ".join(f"{name!r}: {weight!r}" for name, weight in self.weights.items())
        return (
            f"{{{weights}}}, {self.label_smoothing!r}, {self.first_token_mle!r}, "
            f"{self.pad_token_id!r}, {self.ignore_index!r}, {self.alternatives_text!r}"
        )

    def first_by_mle(self) -> list[str]:
        """The objectives that score first tokens over the whole vocabulary."""
        return [name for name in self.weights if scores_first_token(name, self.first_token_mle)]

    @classmethod
    def from_text(cls, text: str) -> "Mixture":
        return cls(*ast.literal_eval(text))


@lru_cache(maxsize=64)
def _built(parameters: str) -> dict[str, Any]:
    by_name = ast.literal_eval(parameters)
    return {name: load(ALTERNATIVES[name])(**options) for name, options in by_name.items()}


class LossInputs(NamedTuple):
    """The inputs of the fused linear loss that have no gradient.

    labels: (B, N). words: (B, N, R), sampled for random subsetting, or None. segments, weights:
    (B, N) or None. dtype: the dtype of logits. wanted: whether hidden states, weight and bias need
    a gradient. shards: the `smile.sharded.Shards` with which processes share the head, or None.
    """

    labels: Tensor
    words: Optional[Tensor]
    segments: Optional[Tensor]
    weights: Optional[Tensor]
    mixture: Mixture
    reduction: str
    transform: Transform
    dtype: torch.dtype
    wanted: tuple[bool, bool, bool]
    shards: Any

    @property
    def defer_grad(self) -> bool:
        """Whether gradients are computed in the backward pass instead of the forward pass.

        float16 needs the loss scale, and the reduction "none" needs the gradient of each loss.
        """
        return self.dtype == torch.float16 or self.reduction == "none"
