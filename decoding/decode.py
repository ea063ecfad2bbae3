"""The entrance: a captioner's step function in, token ids and scores or captions out."""

from typing import Callable, NamedTuple, Protocol

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


class Generated(NamedTuple):
    """captions: B lists of num_return strings, best first; token_ids int64 (B, num_return, L);
    scores float64 (B, num_return), see `Decoded`."""

    captions: list[list[str]]
    token_ids: Tensor
    scores: Tensor


class SpecialIds(Protocol):
    """What is needed of a tokeniser: the ids that end a caption and fill it up."""

    end: int
    pad: int


def draw_captions(
    step: Step,
    prompt: Tensor,
    images: Tensor,
    tokenizer: SpecialIds,
    settings: DecodingSettings,
    text: Callable[[Tensor], str],
) -> Generated:
    """Captions of B images that all start with a prompt, int64 (n,).

    images: (B, ...), for their number and device. text: ids (L,), the prompt's included, to a
    caption.
    """
    prompts = prompt.to(images.device).expand(len(images), -1)
    token_ids, scores = decode(step, prompts, tokenizer.end, tokenizer.pad, settings)
    return Generated([[text(ids) for ids in rows] for rows in token_ids], token_ids, scores)
