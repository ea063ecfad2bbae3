"""The fused linear loss of a mixture with loss truncation, in two passes."""

from typing import Optional

import torch
from torch import Tensor

from smile.alternatives.truncation import LastMeans, Truncation
from smile.captions import numbered
from smile.labels import count
from smile.mixture import Mixture
from smile.operator import mixture_from_hidden


def truncated_from_hidden(
    truncation: Truncation,
    means: Optional[LastMeans],
    inputs: tuple[Tensor, Tensor, Optional[Tensor]],
    batch: tuple[Tensor, Optional[Tensor], Optional[Tensor], Optional[Tensor]],
    mixture: Mixture,
    reduction: str,
    *options,
) -> tuple[Tensor, Tensor]:
    """`mixture_from_hidden` for a mixture that includes loss truncation.

    inputs: hidden states, weight and bias. batch: labels, words, segments and weights. The first
    pass computes MLE's losses. The second pass computes the gradients of the captions that are
    kept. options: further arguments of `mixture_from_hidden`.
    """
    labels, _, segments, weights = batch
    ignore = mixture.ignore_index
    mle = Mixture({"mle": 1.0}, 0.0, False, None, ignore)
    with torch.no_grad():
        losses, _ = mixture_from_hidden(*inputs, labels, None, None, None, mle, "none", *options)
    captions = numbered(labels, segments)
    shares = truncation.factors(losses, labels, captions, weights, ignore, means)
    if weights is not None:
        shares = shares * weights
    kept = labels.masked_fill(shares == 0, ignore)
    reduced = "sum" if reduction == "mean" else reduction
    part, _ = mixture_from_hidden(*inputs, kept, None, None, shares, mle, reduced, *options)
    if reduction == "mean":
        tokens = count(labels, weights, ignore)
        part = part / tokens.masked_fill(tokens == 0, 1)
    weight = mixture.weights["truncation"]
    names = list(mixture.weights)
    others = {name: each for name, each in mixture.weights.items() if name != "truncation"}
    loss, parts = weight * part, part.detach().unsqueeze(0)
    if others:
        mixture = mixture._replace(weights=others)
        other_loss, other_parts = mixture_from_hidden(*inputs, *batch, mixture, reduction, *options)
        loss = loss + other_loss
        before, after = other_parts.tensor_split([names.index("truncation")])
        parts = torch.cat([before, parts, after])
    return loss, parts
