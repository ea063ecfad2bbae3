"""Computes scaled dot-product attention with the fastest kernel for the device and precision."""

import math
from collections.abc import Iterator
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from BLIP.kernels import matmul

# A decoding step has at most this many queries per image. Two matrix products are then faster than
# torch's fused kernel.
FEW_QUERIES = 32
# The maximum number of scores (heads * queries * keys) of one block, so that the scores stay in the
# CPU's cache.
MAX_SCORES = 2**20
# With at least this many queries, oneDNN with one head per call takes half the time of torch's
# matmul.
MANY_QUERIES = 128


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Optional[Tensor] = None,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from q queries to n keys. Return the weighted sums of the values, (b, heads, q, d).

    query: (b, heads, q, d); it is cast to the dtype of the keys. key, value: (b, heads, n, d).
    mask: bool, true where a query may attend to a key; it is broadcast to (b, heads, q, n).
    is_causal: let each query attend only to its own and earlier positions. dropout: the probability
    of setting an attention weight to 0.
    """
    query = query.to(key.dtype)
    if query.is_cpu and not is_causal and not torch.compiler.is_compiling():
        # torch's fused CPU kernel does not support dropout and is slow for few queries. In 16 bits
        # it also copies keys and values in every call, and its backward pass is slow.
        is_16_bit = query.dtype in (torch.bfloat16, torch.float16)
        has_grad = torch.is_grad_enabled()
        has_few_queries = not has_grad and query.size(2) <= FEW_QUERIES
        fused_is_slow = (
            is_16_bit and not has_few_queries and (has_grad or not _fused_is_fast(query))
        )
        if mask is None and (dropout > 0 or fused_is_slow or _one_head_per_block(query)):
            return _BlockAttention.apply(query, key, value, dropout)
        if has_few_queries or (fused_is_slow and not has_grad):
            scores = _scaled(query) @ key.mT
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            softmax_dtype = torch.promote_types(scores.dtype, torch.float32)
            return scores.softmax(-1, dtype=softmax_dtype).to(value.dtype) @ value
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )


class _BlockAttention(torch.autograd.Function):
    """Attention on a CPU that computes a few heads at a time, so that scores stay in the cache.

    For the backward pass, it saves only the inputs and the dropout mask. The backward pass
    recomputes the attention probabilities.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        keep_mask = None
        if dropout > 0:
            keep_mask = _keep_mask((*query.shape[:3], key.size(2)), dropout)
        if keep_mask is None and _fused_is_fast(query):
            context = F.scaled_dot_product_attention(query, key, value)
        else:
            context = _empty_head_minor(query, value.size(3))
            for block, query_, key_, value_ in _blocks(query, key, value):
                probabilities = _probabilities(_scaled(query_), key_)
                if keep_mask is not None:
                    probabilities.mul_(keep_mask[block]).div_(1 - dropout)
                context[block] = matmul.matmul(probabilities, value_)
        ctx.save_for_backward(query, key, value, keep_mask)
        ctx.dropout = dropout
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, keep_mask = ctx.saved_tensors
        query_grad, key_grad, value_grad = (
            _empty_head_minor(x, x.size(3)) for x in (query, key, value)
        )
        for block, query_, key_, value_, gradient_ in _blocks(query, key, value, gradient):
            scaled = _scaled(query_)
            probabilities = dropped = _probabilities(scaled, key_)
            score_grad = matmul.matmul(gradient_, value_.mT)
            if keep_mask is not None:
                scale = (keep_mask[block] / (1 - ctx.dropout)).to(query.dtype)
                dropped = probabilities * scale
                score_grad.mul_(scale)
            value_grad[block] = matmul.matmul(dropped.mT, gradient_)
            torch.ops.aten._softmax_backward_data.out(
                score_grad, probabilities, -1, score_grad.dtype, grad_input=score_grad
            )
            query_grad[block] = _scaled(matmul.matmul(score_grad, key_))
            key_grad[block] = matmul.matmul(score_grad.mT, scaled)
        return query_grad, key_grad, value_grad, None


def _fused_is_fast(query: Tensor) -> bool:
    """Return whether torch's fused kernel is the fastest kernel for a 16-bit query.

    This is true for bfloat16 on a CPU with AMX, unless there are only few queries.
    """
    return matmul.HAS_AMX and query.dtype == torch.bfloat16 and query.size(2) > FEW_QUERIES


def _keep_mask(shape: tuple[int, ...], dropout: float) -> Tensor:
    """Return a bool mask on the CPU, False with the probability `dropout`.

    The probability is rounded to a multiple of 2**-16. Each 64-bit random number gives four values.
    On a CPU, torch generates random numbers sequentially, so that one number per value would take 6
    times longer.
    """
    count = math.prod(shape)
    random = torch.empty(-(-count // 4), dtype=torch.int64)
    random.random_(-(2**63), None)
    return (random.view(torch.int16)[:count] >= round(dropout * 2**16) - 2**15).view(shape)


def _one_head_per_block(query: Tensor) -> bool:
    """Return whether to process one head per block, so that oneDNN's 2-D matmul can be used.

    query: (b, heads, q, d).
    """
    return matmul.uses_onednn_fp32(query.device, query.dtype) and query.size(2) >= MANY_QUERIES


def _blocks(*inputs: Tensor) -> Iterator[tuple]:
    """Split the inputs, each (b, heads, n, d), into blocks of heads of one image.

    inputs: the query, the key, and any further tensors. Yields the index of each block, (image,
    heads), followed by the part ([heads,] n, d) of each input.
    """
    query, key = inputs[:2]
    by_head = _one_head_per_block(query)
    heads = 1 if by_head else max(MAX_SCORES // (query.size(2) * key.size(2)), 1)
    for image in range(len(query)):
        parts = [x[image].contiguous() for x in inputs]  # once per image, not in every matmul
        for first in range(0, query.size(1), heads):
            heads_index = first if by_head else slice(first, first + heads)
            yield ((image, heads_index), *(x[heads_index] for x in parts))


def _empty_head_minor(rows: Tensor, width: int) -> Tensor:
    """Return an empty tensor (b, heads, n, width), stored as (b, n, heads, width).

    In this memory layout, the heads can be merged without a copy. rows: a tensor (b, heads, n, *)
    that gives shape, dtype and device.
    """
    b, heads, n, _ = rows.shape
    return rows.new_empty(b, n, heads, width).transpose(1, 2)


def _scaled(query: Tensor) -> Tensor:
    return query * query.size(-1) ** -0.5


def _probabilities(scaled: Tensor, key: Tensor) -> Tensor:
    scores = matmul.matmul(scaled, key.mT)
    return torch.softmax(scores, -1, out=scores)  # in place, without another allocation
