"""Classifier-free guidance (arXiv 2307.16686), with which captions depend more on the image.

A step runs a batch of 2B prompts: the first B prompts see the images, the second B prompts see the
null image, whose log-probabilities are subtracted.
"""

from typing import Optional

import torch
from torch import Tensor

from decoding.interface import Step


def guided_step(step: Step, scale: float) -> Step:
    """Return a `decoding.Step` of B prompts, given one of 2B prompts. scale: see `guide`."""
    previous_rows = 0  # the number of rows of B prompts at the previous call

    def guided(tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        nonlocal previous_rows
        if rows is not None:
            rows = torch.cat([rows, rows + previous_rows])
        previous_rows = tokens[..., 0].numel()
        image_logits, null_logits = step(torch.cat([tokens, tokens]), rows).chunk(2)
        return guide(image_logits, null_logits, scale)

    return guided


def guide(image_logits: Tensor, null_logits: Tensor, scale: float) -> Tensor:
    """Return logits (..., V): log p_null + scale * (log p_image - log p_null).

    If a token's image logit is -inf, the result is -inf, too.
    """
    image_logp = image_logits.float().log_softmax(-1)
    null_logp = null_logits.float().log_softmax(-1)
    logits = null_logp + scale * (image_logp - null_logp)
    return logits.masked_fill(image_logp == -torch.inf, -torch.inf)
