"""Generates captions by a captioner's step function. This is the entry point of the package."""

import torch
from torch import Tensor

from decoding.beam import beam_search
from decoding.guided import guided_step
from decoding.interface import Decoded, DecodingSettings, Step
from decoding.sampling import greedy_or_sample


def decode(step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings) -> Decoded:
    """Return captions of every prompt by beam search, greedy decoding or sampling.

    - step: with a `guidance_scale` other than 1, it takes 2B prompts, see `decoding.guided`
    - prompt: int64 (B, n)
    - end: the id of the token that ends a caption
    - pad: the id of the token that fills the positions after `end`

    Raises ValueError if `max_length` is not above n.
    """
    if prompt.size(1) >= settings.max_length:
        raise ValueError(
            f"max_length is {settings.max_length}, but the prompt alone is {prompt.size(1)} tokens"
        )
    if settings.guidance_scale != 1:
        step = guided_step(step, settings.guidance_scale)
    search = greedy_or_sample if settings.sample or settings.num_beams == 1 else beam_search
    with torch.inference_mode():
        return search(step, prompt, end, pad, settings)
