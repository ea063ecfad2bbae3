"""Generates captions with transformers' `generate` and the settings of the configuration."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Optional

import torch
from torch import Tensor, nn

from decoding import DecodingSettings
from decoding.guided import combined


def generation_config(model: nn.Module, settings: DecodingSettings, ends: list[int], pad: int):
    """The model's generation config, overridden by the settings. Lengths count caption tokens.

    Values that have no setting, such as early_stopping, keep the model's default.
    """
    config = copy.deepcopy(model.generation_config)
    values: dict[str, Any] = {
        **{"max_length": None, "min_length": None},
        **{"max_new_tokens": settings.max_length, "min_new_tokens": settings.min_length},
        **{"num_beams": 1 if settings.sample else settings.num_beams},
        **{"do_sample": settings.sample, "num_return_sequences": settings.num_return},
        **{"length_penalty": settings.length_penalty},
        **{"repetition_penalty": settings.repetition_penalty},
        **{"no_repeat_ngram_size": settings.no_repeat_ngram_size},
        **{"guidance_scale": settings.guidance_scale},
        **{"eos_token_id": ends, "pad_token_id": pad},
        **{"return_dict_in_generate": True},
    }
    sampling = ("top_p", "top_k", "temperature", "min_p", "typical_p")
    values.update({name: getattr(settings, name) if settings.sample else None for name in sampling})
    for name, value in values.items():
        setattr(config, name, value)
    return config


@torch.inference_mode()
def generate(
    model: nn.Module,
    inputs: dict[str, Tensor],
    settings: DecodingSettings,
    ends: list[int],
    library_pad: int,
    prefix: int,
    pad: int,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Token ids of captions (B * num_return, L), padded with `pad` after the end, and scores.

    model: without a peft wrapper. library_pad: the token that `generate` pads with. prefix: the
    number of tokens before the caption in a row. Scores are float64 (B * num_return,). Beam search
    returns the scores of transformers. Otherwise a score is the sum of log-probabilities / length
    ** length_penalty. Both include the end token. Under guidance the scores of the model alone come
    last, otherwise None.
    """
    config = generation_config(model, settings, ends, library_pad)
    beams, guided = config.num_beams > 1, settings.guidance_scale != 1
    config.output_scores, config.output_logits = beams, not (beams or guided)
    with _recorded(model) if guided else nullcontext([]) as calls:
        output = model.generate(**inputs, generation_config=config)
    ids = output.sequences[:, prefix:]
    ended = torch.isin(ids, ids.new_tensor(ends))
    after_end = ended.int().cumsum(1) - ended.int() > 0
    if beams:
        return ids.masked_fill(after_end, pad), output.sequences_scores.double(), None

    def score(logits: Tensor) -> Tensor:
        logprobs = logits.float().log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2).double()
        lengths = (~after_end).sum(1)
        return logprobs.masked_fill(after_end, 0).sum(1) / lengths**settings.length_penalty

    if not guided:
        return ids.masked_fill(after_end, pad), score(torch.stack(output.logits, 1)), None
    # `generate` calls the model with and without the image in turn.
    own, other = (torch.stack(calls[start::2], 1) for start in (0, 1))  # (rows, L, V)
    return ids.masked_fill(after_end, pad), score(combined(own, other, settings)), score(own)


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the logits (rows, V) of the last position of each call of the model."""
    logits: list[Tensor] = []

    def record(module, arguments, output):
        logits.append(output.logits[:, -1].clone())

    hook = model.register_forward_hook(record)
    try:
        yield logits
    finally:
        hook.remove()
