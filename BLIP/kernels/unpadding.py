"""The real tokens of padded rows, one after the other: what is computed of each alone needs no
others."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN makes the code of a product anew for each number of rows, which takes longer than a small
# one: with steps of 16 there are few.
MULTIPLE = 16


class RealTokens:
    """T tokens among rows (R, n), those where `attention_mask`, int64 (R, n), is 1.

    Every row begins with one. After the last are copies of the first, up to the next MULTIPLE.
    """

    def __init__(self, attention_mask: Tensor):
        real = attention_mask.flatten() > 0
        self.shape = attention_mask.shape
        places = real.nonzero().squeeze(1)
        self.places = F.pad(places, (0, -len(places) % MULTIPLE))  # (T,)
        self.numbers = real.cumsum(0) - 1  # (R * n,): a place of padding has the last before it

    def of(self, x: Tensor) -> Tensor:
        """x of all tokens, (R, n, H) or grouped otherwise -> (T, H)."""
        return x.reshape(-1, x.size(-1)).index_select(0, self.places)

    def padded(self, x: Tensor) -> Tensor:
        """x (T, H) -> (R, n, H), with copies of real tokens for padding, which nobody looks at."""
        return x.index_select(0, self.numbers).unflatten(0, self.shape)


def real_tokens(attention_mask: Tensor) -> Optional[RealTokens]:
    """None where that would not be faster: on a GPU the host would wait for their number.

    Without gradients, too, rows stay as they are: whoever looks on finds them so.
    """
    device, compiles = attention_mask.device.type, torch.compiler.is_compiling()
    if device != "cpu" or compiles or not torch.is_grad_enabled() or attention_mask.all():
        return None
    return RealTokens(attention_mask)
