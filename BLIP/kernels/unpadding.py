"""Removes the padding of a batch, so that layers that process tokens one by one skip it."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN compiles a kernel for each number of rows, which takes longer than a small product. If the
# number of rows is a multiple of 16, few kernels are compiled.
MULTIPLE = 16


class Unpadding:
    """Removes the padding of rows (R, n) and restores it.

    attention_mask: int64 (R, n), 1 at tokens and 0 at padding. Every row begins with a token. T is
    the number of tokens, rounded up to a multiple of MULTIPLE with copies of the first token.
    """

    def __init__(self, attention_mask: Tensor):
        is_token = attention_mask.flatten() > 0
        self.shape = attention_mask.shape
        indices = is_token.nonzero().squeeze(1)
        self.indices = F.pad(indices, (0, -len(indices) % MULTIPLE))  # (T,)
        # (R * n,): the index into the T tokens for each position. Padding has the index of the last
        # token before it.
        self.inverse = is_token.cumsum(0) - 1

    def unpad(self, x: Tensor) -> Tensor:
        """Remove padding: x (R, n, H) -> (T, H). x may have any shape (..., H) with R * n rows."""
        return x.reshape(-1, x.size(-1)).index_select(0, self.indices)

    def pad(self, x: Tensor) -> Tensor:
        """Restore padding: x (T, H) -> (R, n, H).

        Positions of padding get copies of tokens, which the attention mask excludes.
        """
        return x.index_select(0, self.inverse).unflatten(0, self.shape)


def build_unpadding(attention_mask: Tensor) -> Optional[Unpadding]:
    """Return the unpadding of a batch, or None if the batch has no padding or keeps it.

    A batch keeps its padding
    - on a GPU, because the host would have to wait for T;
    - without gradients, so that forward hooks see whole rows;
    - in a compiled model, because T depends on the data.
    """
    device = attention_mask.device.type
    is_compiling = torch.compiler.is_compiling()
    if device != "cpu" or is_compiling or not torch.is_grad_enabled() or attention_mask.all():
        return None
    return Unpadding(attention_mask)
