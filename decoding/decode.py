"""Entry point: from a captioner's step function to token ids, scores and captions."""

from typing import Any, Callable

import torch
from torch import Tensor

from decoding.beam import beam_search
from decoding.interface import Decoded, DecodingSettings, Generated, Step
from decoding.sampling import sample


def decode(step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings) -> Decoded:
    """Captions of every prompt by beam search, greedily, or sampled from torch's generator.

    prompt: int64 (B, n). Raises ValueError if `max_length` is not above n.
    """
    if prompt.size(1) >= settings.max_length:
        raise ValueError(
            f"max_length is {settings.max_length}, but the prompt alone is {prompt.size(1)} tokens"
        )
    search = sample if settings.sample or settings.num_beams == 1 else beam_search
    with torch.inference_mode():
        return search(step, prompt, end, pad, settings)


def generate_captions(
    step: Step,
    prompt: Tensor,
    images: Tensor,
    tokenizer: Any,
    settings: DecodingSettings,
    text: Callable[[Tensor], str],
) -> Generated:
    """Captions of B images that all start with a prompt, int64 (n,).

    images: (B, ...), of which only the number and device are used. tokenizer: has the token ids
    `end` and `pad`. text: turns ids (L,), prompt included, into a caption.
    """
    prompts = prompt.to(images.device).expand(len(images), -1)
    token_ids, scores = decode(step, prompts, tokenizer.end, tokenizer.pad, settings)
    return Generated([[text(ids) for ids in rows] for rows in token_ids], token_ids, scores)
