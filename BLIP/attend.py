"""Scaled dot-product attention, by the kernel that is fastest for its device and precision."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW_QUERIES = 32  # of an image at a decoding step, say; an image encoder has hundreds


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
    if half and not is_causal and not torch.compiler.is_compiling():
        # In 16 bits torch's fused kernel for the CPU lays keys and values out anew at every call,
        # which for few queries takes longer than the attention, and its backward is slow.
        learns = torch.is_grad_enabled()
        if mask is None and dropout == 0 and (learns or query.size(2) > FEW_QUERIES):
            return _ByImage.apply(query, key, value)
        if not learns:
            scores = (query * query.size(3) ** -0.5) @ key.transpose(2, 3)
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )


class _ByImage(torch.autograd.Function):
    """Matrix products and a softmax for one image at a time, whose scores thus stay in the cache.

    No probabilities are kept: backward computes them again.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        context = _heads_inside(query)
        for at in range(query.size(0)):
            context[at] = _probabilities(_scaled(query[at]), key[at]) @ value[at]
        ctx.save_for_backward(query, key, value, context)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, context = ctx.saved_tensors
        of_query, of_key, of_value = (_heads_inside(x) for x in (query, key, value))
        # What the softmax's gradient subtracts: a row's sum of probability times its gradient.
        means = (gradient.float() * context.float()).sum(-1, keepdim=True).to(query.dtype)
        for at in range(query.size(0)):
            scaled = _scaled(query[at])
            probabilities = _probabilities(scaled, key[at])  # (heads, q, places)
            of_value[at] = probabilities.transpose(1, 2) @ gradient[at]
            of_scores = gradient[at] @ value[at].transpose(1, 2)
            of_scores.sub_(means[at]).mul_(probabilities)
            of_query[at] = _scaled(of_scores @ key[at])
            of_key[at] = of_scores.transpose(1, 2) @ scaled
        return of_query, of_key, of_value


def _heads_inside(like: Tensor) -> Tensor:
    """Uninitialised, (b, heads, n, d), a token's heads side by side: joining them is free."""
    inside = torch.empty_like(like.transpose(1, 2), memory_format=torch.contiguous_format)
    return inside.transpose(1, 2)


def _scaled(query: Tensor) -> Tensor:
    return query * query.size(-1) ** -0.5


def _probabilities(scaled: Tensor, key: Tensor) -> Tensor:
    return (scaled @ key.transpose(1, 2)).softmax(-1)
