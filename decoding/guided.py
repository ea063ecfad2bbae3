"""Combines two streams of one captioner, so that captions depend more on the image.

The first stream sees the image. The second stream sees another image, whose log-probabilities are
subtracted: the null image in classifier-free guidance (arXiv 2307.16686), or the image with noise
in visual contrastive decoding (arXiv 2311.16922). This project calls the methods guidance and
contrast. In a step of 2B prompts, the first B prompts see the images, and the second B prompts see
the other images.
"""

import math
from typing import Any, Optional

import torch
from torch import Tensor

from decoding.interface import DecodingSettings, Step

DIFFUSION_STEPS = 1000
# Added to the log-probabilities of banned tokens. It is not -inf, because min_length may ban all
# other tokens.
IMPLAUSIBLE = -1e4


class GuidedStep:
    """A `decoding.Step` that runs both streams in one batch, and combines their logits.

    step: the captioner's step function, for 2B prompts. This step takes B prompts.
    """

    def __init__(self, step: Step, settings: DecodingSettings):
        self.step = step
        self.settings = settings
        self.previous_rows = 0  # the number of rows of one stream at the previous call

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is not None:
            rows = torch.cat([rows, rows + self.previous_rows])
        self.previous_rows = tokens.size(0) * tokens.size(1)
        image_logits, other_logits = self.step(torch.cat([tokens, tokens]), rows).chunk(2)
        return combine_streams(image_logits, other_logits, self.settings)


def combine_streams(
    image_logits: Tensor, other_logits: Tensor, settings: DecodingSettings
) -> Tensor:
    """Return logits (..., V) of guidance or contrast, from the logits of both streams.

    Guidance: log p_other + guidance_scale * (log p_image - log p_other).
    Contrast: (1 + alpha) * log p_image - alpha * log p_other, where tokens with
    p_image < beta * max p_image are banned. alpha, beta: `contrastive_alpha`, `contrastive_beta`.
    If a token's image logit is -inf, the result is -inf, too.
    """
    image_logp = image_logits.float().log_softmax(-1)
    other_logp = other_logits.float().log_softmax(-1)
    if settings.contrastive_alpha:
        alpha = settings.contrastive_alpha
        beta = settings.contrastive_beta
        log_beta = math.log(beta) if beta > 0 else -math.inf
        threshold = image_logp.amax(-1, keepdim=True) + log_beta
        logits = (1 + alpha) * image_logp - alpha * other_logp
        logits = logits.where(image_logp >= threshold, image_logp + IMPLAUSIBLE)
    else:
        logits = other_logp + settings.guidance_scale * (image_logp - other_logp)
    return logits.masked_fill(image_logp == -math.inf, -math.inf)


def second_stream(
    captioner: Any, encoded: Any, settings: DecodingSettings, other: Any = None
) -> Any:
    """Return the encoded images of the second stream; None if there is no second stream.

    For guidance the result is one null image for the whole batch, for contrast it is `other`.
    captioner: has the method `encode_null`. encoded: the encoded images. other: the result of
    `encode_noisy`, or None. Raises ValueError for contrast if `other` is None.
    """
    if settings.contrastive_alpha and other is None:
        raise ValueError(
            f"contrastive_alpha is {settings.contrastive_alpha}, which needs the images, not only "
            "their features; set it to 0"
        )
    return captioner.encode_null(encoded[:1]) if settings.guidance_scale != 1 else other


def encode_noisy(captioner: Any, image: Tensor, settings: DecodingSettings) -> Any:
    """Add noise to images (B, 3, S, S) and return them encoded; None if there is no contrast."""
    return captioner.encode(add_noise(image, settings)) if settings.contrastive_alpha else None


def add_noise(image: Tensor, settings: DecodingSettings) -> Tensor:
    """Return images (B, 3, S, S) after step t = `contrastive_noise` of a diffusion.

    The result is sqrt(a_t) x + sqrt(1 - a_t) e for an image x. a_t is the product of 1 - beta_s
    over the steps s = 0 to t, where beta_s rises from 1e-5 to 5e-3 along a sigmoid. e is normal
    noise, the same for all images. Source: arXiv 2006.11239; the steps are those of arXiv
    2311.16922.
    """
    betas = torch.linspace(-6, 6, DIFFUSION_STEPS, dtype=torch.float64).sigmoid()
    betas = betas * (5e-3 - 1e-5) + 1e-5
    signal_share = (1 - betas)[: settings.contrastive_noise + 1].prod().item()
    noise = torch.randn(image.shape[1:], generator=torch.Generator().manual_seed(0)).to(image)
    return math.sqrt(signal_share) * image + math.sqrt(1 - signal_share) * noise


def caption_lengths(ids: Tensor, prompt_length: int, end: int) -> Tensor:
    """Return the number of tokens of each caption (B, k, n), with the prompt and without `end`.

    The result is int64 (B, k). prompt_length: the number of the prompt's tokens.
    """
    return prompt_length + ((ids[..., prompt_length:] == end).cumsum(-1) == 0).sum(-1)
