"""Classifier-free guidance (arXiv 2307.16686), with which captions depend more on the image.

A step runs a batch of 2B prompts: the first B prompts see the images, the second B prompts see the
null image, whose log-probabilities are subtracted.
"""

from typing import Optional

import torch
from torch import Tensor

from decoding.interface import Step


class GuidedStep:
    """A `decoding.Step` of B prompts, with guidance.

    step: the captioner's step function, for 2B prompts. scale: see `guide`.
    """

    def __init__(self, step: Step, scale: float):
        self.step, self.scale = step, scale
        self.previous_rows = 0  # the number of rows of B prompts at the previous call

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is not None:
            rows = torch.cat([rows, rows + self.previous_rows])
        self.previous_rows = tokens.size(0) * tokens.size(1)
        image_logits, null_logits = self.step(torch.cat([tokens, tokens]), rows).chunk(2)
        return guide(image_logits, null_logits, self.scale)


def guide(image_logits: Tensor, null_logits: Tensor, scale: float) -> Tensor:
    """Return logits (..., V): log p_null + scale * (log p_image - log p_null).

    If a token's image logit is -inf, the result is -inf, too.
    """
    image_logp = image_logits.float().log_softmax(-1)
    null_logp = null_logits.float().log_softmax(-1)
    logits = null_logp + scale * (image_logp - null_logp)
    return logits.masked_fill(image_logp == -torch.inf, -torch.inf)


def caption_lengths(ids: Tensor, prompt_length: int, end: int) -> Tensor:
    """Return the number of tokens of each caption (B, k, n), with the prompt and without `end`.

    The result is int64 (B, k). prompt_length: the number of the prompt's tokens.
    """
    return prompt_length + ((ids[..., prompt_length:] == end).cumsum(-1) == 0).sum(-1)
