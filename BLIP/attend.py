"""Scaled dot-product attention, by the kernel that is fastest for its device and precision."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Optional[Tensor] = None,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """query (b, heads, q, d) over key and value (b, heads, places, d) -> (b, heads, q, d).

    The query is taken in the precision of the keys. mask: bool, True where a query may look, of a
    shape that broadcasts to (b, heads, q, places).
    """
    query = query.to(key.dtype)
    half = query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    if half and not is_causal and not torch.is_grad_enabled():
        # In 16 bits torch's fused kernel for the CPU lays all keys and values out anew at every
        # call, which for the few queries of a decoding step takes longer than the attention.
        scores = (query * query.size(3) ** -0.5) @ key.transpose(2, 3)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )
