"""Captions drawn by the library's `generate`, with the settings of the configuration."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from decoding import DecodingSettings


def generation_config(model: nn.Module, settings: DecodingSettings, ends: list[int], pad: int):
    """The model's own, with every setting that a configuration has; lengths are those of captions.

    What a configuration has no key for, such as early_stopping, stays the model's.
    """
    made = copy.deepcopy(model.generation_config)
    values: dict[str, Any] = {
        **{"max_length": None, "min_length": None},
        **{"max_new_tokens": settings.max_length, "min_new_tokens": settings.min_length},
        **{"num_beams": 1 if settings.sample else settings.num_beams},
        **{"do_sample": settings.sample, "num_return_sequences": settings.num_return},
        **{"length_penalty": settings.length_penalty},
        **{"repetition_penalty": settings.repetition_penalty},
        **{"no_repeat_ngram_size": settings.no_repeat_ngram_size},
        **{"eos_token_id": ends, "pad_token_id": pad},
        **{"return_dict_in_generate": True},
    }
    drawn = ("top_p", "top_k", "temperature", "min_p", "typical_p")
    values.update({name: getattr(settings, name) if settings.sample else None for name in drawn})
    for name, value in values.items():
        setattr(made, name, value)
    return made


@torch.inference_mode()
def draw(
    model: nn.Module,
    inputs: dict[str, Tensor],
    settings: DecodingSettings,
    ends: list[int],
    filler: int,
    begin: int,
    pad: int,
) -> tuple[Tensor, Tensor]:
    """Ids of captions (B * num_return, L), ended and then filled up with `pad`, and their scores.

    filler: what the library fills rows up with; begin: the tokens of a row that come before its
    caption. A score is the library's own for beams, and else the sum of the log-probabilities over
    the length to the power of `length_penalty`; the end counts in both. float64 (B * num_return,).
    """
    made = generation_config(model, settings, ends, filler)
    beams = made.num_beams > 1
    made.output_scores, made.output_logits = beams, not beams
    found = model.generate(**inputs, generation_config=made)
    ids = found.sequences[:, begin:]
    ended = torch.isin(ids, ids.new_tensor(ends))
    over = ended.int().cumsum(1) - ended.int() > 0
    if beams:
        return ids.masked_fill(over, pad), found.sequences_scores.double()
    steps = torch.stack([x.float().log_softmax(-1) for x in found.logits], 1)  # (rows, L, V)
    logprobs = steps.gather(2, ids.unsqueeze(2)).squeeze(2).double().masked_fill(over, 0)
    lengths = (~over).sum(1)
    return ids.masked_fill(over, pad), logprobs.sum(1) / lengths**settings.length_penalty
