"""Generates captions by a captioner's step function. This is the entry point of the package."""

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from decoding.beam import beam_search
from decoding.guided import GuidedStep, caption_lengths
from decoding.interface import Decoded, DecodingSettings, Generated, Step
from decoding.sampling import greedy_or_sample


def decode(step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings) -> Decoded:
    """Return captions of every prompt by beam search, greedy decoding or sampling.

    prompt: int64 (B, n). end: the id of the token that ends a caption. pad: the id of the token
    that fills the positions after `end`. Raises ValueError if `max_length` is not above n.
    """
    if prompt.size(1) >= settings.max_length:
        raise ValueError(
            f"max_length is {settings.max_length}, but the prompt alone is {prompt.size(1)} tokens"
        )
    search = greedy_or_sample if settings.sample or settings.num_beams == 1 else beam_search
    with torch.inference_mode():
        return search(step, prompt, end, pad, settings)


def generate_captions(
    step: Step,
    prompt: Tensor,
    images: Tensor,
    tokenizer: Any,
    settings: DecodingSettings,
    text: Callable[[Tensor], str],
    log_likelihoods: Optional[Callable[[Tensor], Tensor]] = None,
) -> Generated:
    """Return captions of B images. prompt: int64 (n,), or one for each image, (B, n).

    images: (B, ...), of which only the number and the device are used. tokenizer: has the token ids
    `end` and `pad`. text: a function that maps ids (L,), prompt included, to a caption.

    If `settings.is_guided`, `step` takes 2B prompts, see `decoding.guided`, and `log_likelihoods`
    is needed: a function that maps captions (B, k, n) to the log-likelihood of each token after the
    prompt. Otherwise `log_likelihoods` is not called.
    """
    step = GuidedStep(step, settings.guidance_scale) if settings.is_guided else step
    prompts = prompt.to(images.device).expand(len(images), -1)
    token_ids, scores = decode(step, prompts, tokenizer.end, tokenizer.pad, settings)
    captions = [[text(ids) for ids in rows] for rows in token_ids]
    own_scores = None
    if settings.is_guided:
        lengths = caption_lengths(token_ids, prompt.size(-1), tokenizer.end)
        total = log_likelihoods(token_ids).double().sum(-1)
        own_scores = total / lengths**settings.length_penalty
    return Generated(captions, token_ids, scores, own_scores)
