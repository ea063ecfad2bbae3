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
    *how,
) -> tuple[Tensor, Tensor]:
    """`mixture_from_hidden` of a mixture in which truncation is one of the losses.

    inputs: hidden states, weight and bias. batch: labels, words, segments and weights. The first
    pass computes MLE's losses, the second the gradients of the captions that are kept.
    """
    labels, _, segments, weights = batch
    ignore = mixture.ignore_index
    mle = Mixture({"mle": 1.0}, 0.0, False, None, ignore)
    with torch.no_grad():
        losses, _ = mixture_from_hidden(*inputs, labels, None, None, None, mle, "none", *how)
    captions = numbered(labels, segments)
    shares = truncation.factors(losses, labels, captions, weights, ignore, means)
    if weights is not None:
        shares = shares * weights
    kept = labels.masked_fill(shares == 0, ignore)
    reduced = "sum" if reduction == "mean" else reduction
    part, _ = mixture_from_hidden(*inputs, kept, None, None, shares, mle, reduced, *how)
    if reduction == "mean":
        tokens = count(labels, weights, ignore)
        part = part / tokens.masked_fill(tokens == 0, 1)
    weight = mixture.weights["truncation"]
    names = list(mixture.weights)
    others = {name: each for name, each in mixture.weights.items() if name != "truncation"}
    loss, parts = weight * part, part.detach().unsqueeze(0)
    if others:
        mixture = mixture._replace(weights=others)
        of_others, theirs = mixture_from_hidden(*inputs, *batch, mixture, reduction, *how)
        loss = loss + of_others
        before, after = theirs.tensor_split([names.index("truncation")])
        parts = torch.cat([before, parts, after])
    return loss, parts
