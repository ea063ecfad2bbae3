"""Scaled dot-product attention, by the kernel that suits its device and precision."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW_QUERIES = 32  # of an image at a decoding step, say; an image encoder has hundreds


def attention(
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
    if query.device.type == "cpu" and not is_causal and not torch.compiler.is_compiling():
        # In 16 bits torch's fused kernel for the CPU copies keys and values at every call, and its
        # backward is slow. With dropout there is no fused kernel.
        half = query.dtype in (torch.bfloat16, torch.float16)
        learns = torch.is_grad_enabled()
        if mask is None and (dropout > 0 or (half and (learns or query.size(2) > FEW_QUERIES))):
            return _ByImage.apply(query, key, value, dropout)
        if half and not learns:
            scores = (query * query.size(3) ** -0.5) @ key.transpose(2, 3)
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )


class _ByImage(torch.autograd.Function):
    """Matrix products and a softmax for one image at a time, whose scores thus stay in the cache.

    No probabilities are kept, only what dropout drew: backward computes them again.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        context = _heads_inside(query, value.size(3))
        shape = (*query.shape[:3], key.size(2))  # (b, heads, q, places)
        kept = query.new_empty(shape, dtype=torch.bool) if dropout > 0 else None
        for at in range(query.size(0)):
            probabilities = _probabilities(_scaled(query[at]), key[at])
            if dropout > 0:
                kept[at].bernoulli_(1 - dropout)
                probabilities.mul_(kept[at]).div_(1 - dropout)
            context[at] = probabilities @ value[at]
        ctx.save_for_backward(query, key, value, context, kept)
        ctx.dropout = dropout
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, context, kept = ctx.saved_tensors
        of_query, of_key, of_value = (_heads_inside(x, x.size(3)) for x in (query, key, value))
        # What the softmax's gradient subtracts: a row's sum of probability times its gradient.
        wide = torch.promote_types(query.dtype, torch.float32)
        means = (gradient.to(wide) * context.to(wide)).sum(-1, keepdim=True).to(query.dtype)
        for at in range(query.size(0)):
            scaled = _scaled(query[at])
            probabilities = _probabilities(scaled, key[at])
            of_scores = gradient[at] @ value[at].transpose(1, 2)
            used = probabilities
            if kept is not None:
                scale = kept[at] / (1 - ctx.dropout)
                used = probabilities * scale.to(query.dtype)
                of_scores.mul_(scale)
            of_value[at] = used.transpose(1, 2) @ gradient[at]
            of_scores.sub_(means[at]).mul_(probabilities)
            of_query[at] = _scaled(of_scores @ key[at])
            of_key[at] = of_scores.transpose(1, 2) @ scaled
        return of_query, of_key, of_value, None


def _heads_inside(rows: Tensor, width: int) -> Tensor:
    """Uninitialised, (b, heads, n, width), a token's heads side by side: joining them is free."""
    b, heads, n, _ = rows.shape
    return rows.new_empty(b, n, heads, width).transpose(1, 2)


def _scaled(query: Tensor) -> Tensor:
    return query * query.size(-1) ** -0.5


def _probabilities(scaled: Tensor, key: Tensor) -> Tensor:
    return (scaled @ key.transpose(1, 2)).softmax(-1)
