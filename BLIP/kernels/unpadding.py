"""Unpadding: layers that work on each token alone compute only the real tokens of a batch."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN compiles a product anew for each number of rows, which takes longer than a small product.
# Multiples of 16 keep those numbers few.
MULTIPLE = 16


class Unpadding:
    """Where the T real tokens of rows (R, n) are: `attention_mask`, int64 (R, n), is 1 there.

    Every row begins with a real token. T is rounded up to a MULTIPLE with copies of the first one.
    """

    def __init__(self, attention_mask: Tensor):
        real = attention_mask.flatten() > 0
        self.shape = attention_mask.shape
        indices = real.nonzero().squeeze(1)
        self.indices = F.pad(indices, (0, -len(indices) % MULTIPLE))  # (T,)
        self.inverse = real.cumsum(0) - 1  # (R * n,): padding has the index of the token before it

    def unpad(self, x: Tensor) -> Tensor:
        """x of all tokens, (R, n, H) or grouped otherwise -> (T, H)."""
        return x.reshape(-1, x.size(-1)).index_select(0, self.indices)

    def pad(self, x: Tensor) -> Tensor:
        """x (T, H) -> (R, n, H); padding holds copies of real tokens, which the mask excludes."""
        return x.index_select(0, self.inverse).unflatten(0, self.shape)


def unpadding_of(attention_mask: Tensor) -> Optional[Unpadding]:
    """Return None where unpadding is no faster or not wanted.

    On a GPU the host would have to wait for T. Without gradients rows keep their padding, so that
    hooks see whole rows.
    """
    device, compiles = attention_mask.device.type, torch.compiler.is_compiling()
    if device != "cpu" or compiles or not torch.is_grad_enabled() or attention_mask.all():
        return None
    return Unpadding(attention_mask)
