"""Settings and inputs of the fused linear loss, without hidden states and the head."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

# Whether the original code scores the first token of a caption over the whole vocabulary.
FIRST_TOKEN_MLE = {"smile": True, "random": False, "reverse": True}


def scores_first_token(name: str, first_token_mle: Optional[bool] = None) -> bool:
    """Return whether the objective `name` scores first tokens over the whole vocabulary.

    first_token_mle: the setting; None for the choice of the original code. False for objectives
    that are not in FIRST_TOKEN_MLE.
    """
    default = FIRST_TOKEN_MLE.get(name)
    return bool(default if first_token_mle is None else first_token_mle and default is not None)


class Settings(NamedTuple):
    """The losses of a mixture and their settings, with the names of `Objective`'s arguments.

    alternatives_text: the parameters of alternatives, the Python literal
    {name: {parameter: value}}. Logits are scale * z, or softcap * tanh(scale * z / softcap), with
    z = hidden @ weight.T + bias.
    """

    weights: dict[str, float]
    label_smoothing: float
    first_token_mle: Optional[bool]
    pad_token_id: Optional[int]
    ignore_index: int
    alternatives_text: str
    reduction: str
    scale: float
    softcap: Optional[float]

    def text(self) -> str:
        """Return the settings as a string, for a custom operator. Dynamo can trace this method."""
        weights, *values = self
        weights = ", ".join([f"{name!r}: {weight!r}" for name, weight in weights.items()])
        return f"{{{weights}}}, " + ", ".join([f"{value!r}" for value in values])


class LossInputs(NamedTuple):
    """The inputs of the fused linear loss that have no gradient.

    labels: (B, N). sampled: (B, N, R), the tokens of random subsetting, or None. segments: (B, N)
    or None. weights: of tokens, (B, N), or None. factors: (B, N), those of truncation, or None.
    dtype: in which logits are computed. needs_grad: whether hidden states, the head's weight and
    its bias need a gradient. shards: the `smile.sharded.Shards` of a head that processes share, or
    None.
    """

    labels: Tensor
    sampled: Optional[Tensor]
    segments: Optional[Tensor]
    weights: Optional[Tensor]
    factors: Optional[Tensor]
    settings: Settings
    dtype: torch.dtype
    needs_grad: list[bool]
    shards: Any = None

    @property
    def defer_grad(self) -> bool:
        """Whether gradients are computed in the backward pass instead of the forward pass.

        Only the backward pass has the loss scale, without which gradients in float16 underflow, and
        the gradient of each token's loss, which the reduction "none" needs.
        """
        return self.dtype == torch.float16 or self.settings.reduction == "none"
