"""Scaled dot-product attention, by the kernel that suits its device and precision."""

import math
from collections.abc import Iterator
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from BLIP.kernels import matmul

FEW_QUERIES = 32  # of an image at a decoding step, say; an image encoder has hundreds
IN_CACHE = 2**20  # scores of so many are faster to read again than those of a whole image
MANY_QUERIES = 128  # from which oneDNN's products of one head take half as long as torch's of all


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
        # backward is slow; of few queries it is slow, too. With dropout there is none.
        half = query.dtype in (torch.bfloat16, torch.float16)
        learns = torch.is_grad_enabled()
        few = not learns and query.size(2) <= FEW_QUERIES
        slow = half and not few and (learns or not _fused_is_quick(query))
        if mask is None and (dropout > 0 or slow or _by_head(query)):
            return _InParts.apply(query, key, value, dropout)
        if few or (slow and not learns):
            scores = (query * query.size(3) ** -0.5) @ key.transpose(2, 3)
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            wide = torch.promote_types(scores.dtype, torch.float32)
            return scores.softmax(-1, dtype=wide).to(value.dtype) @ value
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )


class _InParts(torch.autograd.Function):
    """Matrix products and a softmax for some heads at a time, whose scores stay in cache.

    No probabilities are kept, only what dropout drew: backward computes them again.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        kept = None
        if dropout > 0:
            kept = _kept((*query.shape[:3], key.size(2)), dropout, query.device)
        if kept is None and _fused_is_quick(query):
            context = F.scaled_dot_product_attention(query, key, value)
        else:
            context = _heads_inside(query, value.size(3))
            product = _product_of(query)
            for at, query_, key_, value_ in _parts(query, key, value):
                probabilities = _probabilities(product(_scaled(query_), key_.mT))
                if kept is not None:
                    probabilities.mul_(kept[at]).div_(1 - dropout)
                context[at] = product(probabilities, value_)
        ctx.save_for_backward(query, key, value, kept)
        ctx.dropout = dropout
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, kept = ctx.saved_tensors
        of_query, of_key, of_value = (_heads_inside(x, x.size(3)) for x in (query, key, value))
        product = _product_of(query)
        for at, query_, key_, value_, gradient_ in _parts(query, key, value, gradient):
            scaled = _scaled(query_)
            probabilities = _probabilities(product(scaled, key_.mT))
            of_scores = product(gradient_, value_.mT)
            used = probabilities
            if kept is not None:
                scale = (kept[at] / (1 - ctx.dropout)).to(query.dtype)
                used = probabilities * scale
                of_scores.mul_(scale)
            of_value[at] = product(used.mT, gradient_)
            _through_softmax_(of_scores, probabilities)
            of_query[at] = _scaled(product(of_scores, key_))
            of_key[at] = product(of_scores.mT, scaled)
        return of_query, of_key, of_value, None


def _fused_is_quick(query: Tensor) -> bool:
    """Whether torch's fused kernel, without its backward, is the quickest in 16 bits."""
    here = matmul.AMX and query.device.type == "cpu" and query.dtype == torch.bfloat16
    return here and query.size(2) > FEW_QUERIES


def _kept(shape: tuple[int, ...], dropout: float, device: torch.device) -> Tensor:
    """Bool, False with the probability of `dropout`, to 16 bits: four are drawn at a time.

    On a CPU, where torch draws one after another, they would take 6 times as long one by one.
    """
    count = math.prod(shape)
    drawn = torch.empty(-(-count // 4), dtype=torch.int64, device=device)
    drawn.random_(-(2**63), None)
    return (drawn.view(torch.int16)[:count] >= round(dropout * 2**16) - 2**15).view(shape)


def _by_head(query: Tensor) -> bool:
    """Whether the products of query (b, heads, q, d) are oneDNN's."""
    return matmul.quick(query.device, query.dtype) and query.size(2) >= MANY_QUERIES


def _parts(*inputs: Tensor) -> Iterator[tuple]:
    """Of inputs (b, heads, n, d) where a part is, and what they have there: ([heads,] n, d)."""
    query, key = inputs[:2]
    by_head = _by_head(query)
    heads = max(IN_CACHE // (query.size(2) * key.size(2)), 1)
    for image in range(len(query)):
        here = [x[image].contiguous() for x in inputs]  # once, not at every product
        for first in range(0, query.size(1), 1 if by_head else heads):
            some = first if by_head else slice(first, first + heads)
            yield ((image, some), *(x[some] for x in here))


def _product_of(query: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The product ([heads,] n, k) @ ([heads,] k, m) of what `_parts` gives."""
    return matmul.product_of(query) if _by_head(query) else torch.matmul


def _heads_inside(rows: Tensor, width: int) -> Tensor:
    """Uninitialised, (b, heads, n, width), a token's heads side by side: joining them is free."""
    b, heads, n, _ = rows.shape
    return rows.new_empty(b, n, heads, width).transpose(1, 2)


def _scaled(query: Tensor) -> Tensor:
    return query * query.size(-1) ** -0.5


def _probabilities(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1, out=scores)  # no memory that the allocator would give back


def _through_softmax_(gradient: Tensor, probabilities: Tensor) -> None:
    """From the gradient of probabilities that of their scores, in its place."""
    how = (-1, gradient.dtype)
    torch.ops.aten._softmax_backward_data.out(gradient, probabilities, *how, grad_input=gradient)
