"""What decoding asks of a decoder, and what it gives back."""

from typing import NamedTuple, Optional, Protocol

from torch import Tensor


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
