"""The entrance: prompts and a decoder's step function in, token ids and scores out."""

import torch
from torch import Tensor

from decoding.beam import beam_search
from decoding.sampling import sample
from decoding.settings import DecodingSettings
from decoding.step import Decoded, Step


def decode(step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings) -> Decoded:
    """Captions of every prompt by beam search, greedily, or sampled from torch's generator.

    prompt: int64 (B, n). Raises ValueError where `max_length` leaves no room after the prompt.
    """
    if prompt.size(1) >= settings.max_length:
        raise ValueError(
            f"max_length is {settings.max_length}, but the prompt alone is {prompt.size(1)} tokens"
        )
    search = sample if settings.sample or settings.num_beams == 1 else beam_search
    with torch.inference_mode():
        return search(step, prompt, end, pad, settings)
