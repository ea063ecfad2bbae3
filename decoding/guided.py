"""Decoding with two streams of one captioner: the image, and another image to move away from.

Classifier-free guidance (arXiv 2307.16686) takes the null image as the other one, visual
contrastive decoding (arXiv 2311.16922) the image with noise. The first B prompts of a step see the
images, the second B the others.
"""

import math
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from decoding.interface import DecodingSettings, Step, until_end

DIFFUSION_STEPS = 1000
# Added to banned words instead of -inf: min_length may ban all others.
IMPLAUSIBLE = -1e4


class GuidedStep:
    """See `decoding.Step`: steps both streams in one batch, and combines their logits.

    step: of 2B prompts.
    """

    def __init__(self, step: Step, settings: DecodingSettings):
        self.step, self.settings = step, settings
        self.rows = 0  # of a stream, at the previous call

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is not None:
            rows = torch.cat([rows, rows + self.rows])
        self.rows = tokens.size(0) * tokens.size(1)
        own, other = self.step(torch.cat([tokens, tokens]), rows).chunk(2)
        return combined(own, other, self.settings)


def combined(own: Tensor, other: Tensor, settings: DecodingSettings) -> Tensor:
    """Logits (..., V) of guidance or contrast, from those of both streams.

    Guidance: log p_other + guidance_scale * (log p_own - log p_other). Contrast: (1 + alpha) *
    log p_own - alpha * log p_other, and words of less than beta times the best one's p_own are
    banned. A word whose own logit is -inf keeps it.
    """
    own, other = (logits.float().log_softmax(-1) for logits in (own, other))
    if settings.contrastive_alpha:
        alpha, beta = settings.contrastive_alpha, settings.contrastive_beta
        least = own.amax(-1, keepdim=True) + (math.log(beta) if beta else -math.inf)
        logits = (1 + alpha) * own - alpha * other
        logits = logits.where(own >= least, own + IMPLAUSIBLE)
    else:
        logits = other + settings.guidance_scale * (own - other)
    return logits.masked_fill(own == -math.inf, -math.inf)


def second_stream(
    captioner: Any, encoded: Any, settings: DecodingSettings, other: Any = None
) -> Any:
    """The encoded images of the second stream, B or one for all; None for plain decoding.

    captioner: has the methods `encode` and `encode_null`. other: that of `encode_noisy`. Raises
    ValueError for contrast without it.
    """
    if settings.contrastive_alpha and other is None:
        raise ValueError(
            f"contrastive_alpha is {settings.contrastive_alpha}, which needs the images, and here "
            "are only their features; set it to 0"
        )
    return captioner.encode_null(encoded[:1]) if settings.guidance_scale != 1 else other


def encode_noisy(captioner: Any, image: Tensor, settings: DecodingSettings) -> Any:
    """The images (B, 3, S, S) encoded with noise for contrast; None for other settings."""
    return captioner.encode(noisy(image, settings)) if settings.contrastive_alpha else None


def noisy(image: Tensor, settings: DecodingSettings) -> Tensor:
    """Images (B, 3, S, S) after step t, `contrastive_noise`, of a diffusion (arXiv 2006.11239).

    sqrt(a_t) x + sqrt(1 - a_t) e, where a_t is the product of 1 - beta up to t, and beta goes from
    1e-5 to 5e-3 along a sigmoid. e is the same for all images.
    """
    betas = torch.linspace(-6, 6, DIFFUSION_STEPS, dtype=torch.float64).sigmoid()
    betas = betas * (5e-3 - 1e-5) + 1e-5
    kept = (1 - betas)[: settings.contrastive_noise + 1].prod().item()
    noise = torch.randn(image.shape[1:], generator=torch.Generator().manual_seed(0)).to(image)
    return math.sqrt(kept) * image + math.sqrt(1 - kept) * noise


def own_scores(
    log_likelihoods: Callable[[Tensor], Tensor],
    ids: Tensor,
    prompt: int,
    end: int,
    settings: DecodingSettings,
) -> Tensor:
    """The captioner's own scores of captions (B, k, n), float64 (B, k), computed as `Decoded`'s.

    log_likelihoods: returns those of the tokens after the prompt, (B, k, n - prompt).
    """
    total = log_likelihoods(ids).double().sum(-1)
    return total / caption_lengths(ids, prompt, end) ** settings.length_penalty


def caption_lengths(ids: Tensor, prompt: int, end: int) -> Tensor:
    """The lengths by which scores of captions (B, k, n) are divided, int64 (B, k)."""
    real = until_end(ids[..., prompt:], end).sum(-1)
    return prompt + real - (ids[..., prompt:] == end).any(-1).int()
