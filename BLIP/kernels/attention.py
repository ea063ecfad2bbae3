"""Scaled dot-product attention, by the fastest kernel for its device and precision."""

import math
from collections.abc import Iterator
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from BLIP.kernels import matmul

FEW_QUERIES = 32  # of an image, at most: a decoding step
MAX_SCORES = 2**20  # of a block, so that they fit in the CPU's cache
MANY_QUERIES = 128  # or more: oneDNN, one head per call, takes half the time of torch's matmul


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Optional[Tensor] = None,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """query (b, heads, q, d) over key and value (b, heads, n, d) -> (b, heads, q, d).

    The query is cast to the precision of the keys. mask: bool, True where a query may attend; its
    shape broadcasts to (b, heads, q, n).
    """
    query = query.to(key.dtype)
    if query.device.type == "cpu" and not is_causal and not torch.compiler.is_compiling():
        # torch's fused CPU kernel has no dropout and is slow with few queries. In 16 bits it also
        # copies keys and values at every call, and its backward is slow.
        half = query.dtype in (torch.bfloat16, torch.float16)
        learns = torch.is_grad_enabled()
        few = not learns and query.size(2) <= FEW_QUERIES
        slow = half and not few and (learns or not _fused_is_fast(query))
        if mask is None and (dropout > 0 or slow or _one_head_per_block(query)):
            return _BlockAttention.apply(query, key, value, dropout)
        if few or (slow and not learns):
            scores = _scaled(query) @ key.mT
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            wide = torch.promote_types(scores.dtype, torch.float32)
            return scores.softmax(-1, dtype=wide).to(value.dtype) @ value
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )


class _BlockAttention(torch.autograd.Function):
    """Attention of a few heads at a time, so that their scores stay in the cache.

    Only the dropout mask is saved; backward recomputes the probabilities.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        kept = None
        if dropout > 0:
            kept = _dropout_mask((*query.shape[:3], key.size(2)), dropout, query.device)
        if kept is None and _fused_is_fast(query):
            context = F.scaled_dot_product_attention(query, key, value)
        else:
            context = _empty_head_minor(query, value.size(3))
            for at, query_, key_, value_ in _blocks(query, key, value):
                probabilities = _probabilities(_scaled(query_), key_)
                if kept is not None:
                    probabilities.mul_(kept[at]).div_(1 - dropout)
                context[at] = matmul.matmul(probabilities, value_)
        ctx.save_for_backward(query, key, value, kept)
        ctx.dropout = dropout
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, kept = ctx.saved_tensors
        of_query, of_key, of_value = (_empty_head_minor(x, x.size(3)) for x in (query, key, value))
        for at, query_, key_, value_, gradient_ in _blocks(query, key, value, gradient):
            scaled = _scaled(query_)
            probabilities = dropped = _probabilities(scaled, key_)
            of_scores = matmul.matmul(gradient_, value_.mT)
            if kept is not None:
                scale = (kept[at] / (1 - ctx.dropout)).to(query.dtype)
                dropped = probabilities * scale
                of_scores.mul_(scale)
            of_value[at] = matmul.matmul(dropped.mT, gradient_)
            torch.ops.aten._softmax_backward_data.out(
                of_scores, probabilities, -1, of_scores.dtype, grad_input=of_scores
            )
            of_query[at] = _scaled(matmul.matmul(of_scores, key_))
            of_key[at] = matmul.matmul(of_scores.mT, scaled)
        return of_query, of_key, of_value, None


def _fused_is_fast(query: Tensor) -> bool:
    """Whether torch's fused kernel is the fastest forward in 16 bits."""
    here = matmul.AMX and query.device.type == "cpu" and query.dtype == torch.bfloat16
    return here and query.size(2) > FEW_QUERIES


def _dropout_mask(shape: tuple[int, ...], dropout: float, device: torch.device) -> Tensor:
    """Bool keep mask, False with the probability `dropout`, a multiple of 2**-16.

    Four values come from one random number: torch generates them sequentially on a CPU, and one for
    each value would be 6 times slower.
    """
    count = math.prod(shape)
    random = torch.empty(-(-count // 4), dtype=torch.int64, device=device)
    random.random_(-(2**63), None)
    return (random.view(torch.int16)[:count] >= round(dropout * 2**16) - 2**15).view(shape)


def _one_head_per_block(query: Tensor) -> bool:
    """Whether to process query (b, heads, q, d) one head per block, as oneDNN requires."""
    return matmul.uses_onednn(query.device, query.dtype) and query.size(2) >= MANY_QUERIES


def _blocks(*inputs: Tensor) -> Iterator[tuple]:
    """Yield each block: its index and its part ([heads,] n, d) of the inputs (b, heads, n, d)."""
    query, key = inputs[:2]
    by_head = _one_head_per_block(query)
    heads = 1 if by_head else max(MAX_SCORES // (query.size(2) * key.size(2)), 1)
    for image in range(len(query)):
        of_image = [x[image].contiguous() for x in inputs]  # once per image, not in every matmul
        for first in range(0, query.size(1), heads):
            some = first if by_head else slice(first, first + heads)
            yield ((image, some), *(x[some] for x in of_image))


def _empty_head_minor(rows: Tensor, width: int) -> Tensor:
    """Empty (b, heads, n, width) in layout (b, n, heads, width): merging heads needs no copy."""
    b, heads, n, _ = rows.shape
    return rows.new_empty(b, n, heads, width).transpose(1, 2)


def _scaled(query: Tensor) -> Tensor:
    return query * query.size(-1) ** -0.5


def _probabilities(scaled: Tensor, key: Tensor) -> Tensor:
    scores = matmul.matmul(scaled, key.mT)
    return torch.softmax(scores, -1, out=scores)  # in place, without another allocation
