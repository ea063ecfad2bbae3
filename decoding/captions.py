"""From a captioner's step function to captions: what every captioner's `generate` ends in."""

from typing import Callable, NamedTuple, Protocol

from torch import Tensor

from decoding.decode import decode
from decoding.settings import DecodingSettings
from decoding.step import Step


class Generated(NamedTuple):
    """captions: B lists of num_return strings, best first; token_ids int64 (B, num_return, L);
    scores float64 (B, num_return), see `decoding.Decoded`."""

    captions: list[list[str]]
    token_ids: Tensor
    scores: Tensor


class Ends(Protocol):
    """What is needed of a tokeniser: the ids that end a caption and fill it up."""

    end: int
    pad: int


def draw_captions(
    step: Step,
    prompt: Tensor,
    images: Tensor,
    tokenizer: Ends,
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
