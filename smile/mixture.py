"""Defines the settings and inputs of the fused linear loss, except for hidden states and head."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

# Whether the original code scores the first token of a caption over the whole vocabulary.
FIRST_TOKEN_MLE = {"smile": True, "random": False, "reverse": True}


def scores_first_token(name: str, first_token_mle: Optional[bool] = None) -> bool:
    """Return whether the objective `name` scores first tokens over the whole vocabulary.

    first_token_mle: the setting of `Objective`; None means the choice of the original code. Returns
    False for objectives that are not in FIRST_TOKEN_MLE.
    """
    default = FIRST_TOKEN_MLE.get(name)
    return bool(default if first_token_mle is None else first_token_mle and default is not None)


class Settings(NamedTuple):
    """The settings of the objectives in a mixture. Most fields are attributes of `Objective`.

    weights: the weight of each objective by name. alternatives_text: the parameters of
    `smile.alternatives`, as the text of a Python literal {name: {parameter: value}}. scale and
    softcap: with z = hidden @ weight.T + bias, logits are scale * z, or softcap * tanh(scale * z /
    softcap) if there is a softcap.
    """

    weights: dict[str, float]
    ignore_index: int
    reduction: str
    scale: float
    softcap: Optional[float]
    label_smoothing: float = 0.0
    first_token_mle: Optional[bool] = None
    pad_token_id: Optional[int] = None
    alternatives_text: str = "{}"

    def text(self) -> str:
        """Return the settings as the text of a Python tuple, for the custom operator.

        The method uses only what Dynamo can trace: on Python 3.13, no repr of a number.
        """
        weights, *values = self
        weights = ", ".join([f"{name!r}: {weight}" for name, weight in weights.items()])
        values = [f"{value!r}" if isinstance(value, str) else f"{value}" for value in values]
        return f"{{{weights}}}, " + ", ".join(values)


class LossInputs(NamedTuple):
    """The inputs of the fused linear loss that have no gradient.

    dtype: the dtype in which logits are computed. needs_grad: whether the hidden states, the head's
    weight and the head's bias need a gradient. labels: (B, N). sampled: (B, N, R), the tokens of
    random subsetting, or None. segments: (B, N) or None. weights: (B, N), the weights of tokens, or
    None. factors: (B, N), by which truncation multiplies MLE's losses, or None. shards: the
    `smile.sharded.Shards` of a head that several processes share, or None.
    """

    settings: Settings
    dtype: torch.dtype
    needs_grad: list[bool]
    labels: Tensor
    sampled: Optional[Tensor] = None
    segments: Optional[Tensor] = None
    weights: Optional[Tensor] = None
    factors: Optional[Tensor] = None
    shards: Any = None

    @property
    def defer_grad(self) -> bool:
        """Whether gradients are computed in the backward pass instead of the forward pass.

        In float16, gradients underflow without the loss scale, which only the backward pass knows.
        With the reduction "none", only the backward pass knows the gradient of each token's loss.
        """
        return self.dtype == torch.float16 or self.settings.reduction == "none"
