"""Generates captions with transformers' `generate` and the settings of the configuration."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Optional

import torch
from torch import Tensor, nn

from decoding import DecodingSettings
from decoding.guided import guide
from vlm.tokenization import CaptionTokenizer

ALWAYS_USED = ("length_penalty", "repetition_penalty", "no_repeat_ngram_size", "guidance_scale")
SAMPLING_ONLY = ("top_p", "top_k", "temperature")


def generation_config(model: nn.Module, settings: DecodingSettings, tokenizer: CaptionTokenizer):
    """Return a copy of the model's generation config with the values of `settings`.

    Options without a setting, such as early_stopping, keep the model's values. Lengths do not
    include the prompt.
    """
    config, sample = copy.deepcopy(model.generation_config), settings.sample
    config.max_length = config.min_length = None
    config.max_new_tokens, config.min_new_tokens = settings.max_length, settings.min_length
    config.num_beams = 1 if sample else settings.num_beams
    config.do_sample, config.num_return_sequences = sample, settings.num_return
    for name in (*ALWAYS_USED, *SAMPLING_ONLY):
        is_used = sample or name not in SAMPLING_ONLY
        setattr(config, name, getattr(settings, name) if is_used else None)
    config.min_p = config.typical_p = None
    config.eos_token_id, config.pad_token_id = tokenizer.end_tokens, tokenizer.library_pad
    config.return_dict_in_generate = True
    return config


@torch.inference_mode()
def generate(
    model: nn.Module,
    inputs: dict[str, Tensor],
    settings: DecodingSettings,
    tokenizer: CaptionTokenizer,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Generate captions. Return their ids, their scores, and their scores without guidance.

    inputs: the model's inputs for B photos, by name. ids: int64 (B * num_return, L), padded with -1
    after the end token. Scores are float64 (B * num_return,). For beam search, transformers
    computes them. Otherwise a score is the sum of log-probabilities / length ** length_penalty,
    where sum and length include the end token. The last result is None if guidance is off.
    """
    config = generation_config(model, settings, tokenizer)
    uses_beams, is_guided = config.num_beams > 1, settings.guidance_scale != 1
    config.output_scores, config.output_logits = uses_beams, not (uses_beams or is_guided)
    with _record_logits(model) if is_guided else nullcontext([]) as calls:
        output = model.generate(**inputs, generation_config=config)
    start = inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"].size(1)
    ids = output.sequences[:, start:]
    is_end = torch.isin(ids, ids.new_tensor(tokenizer.end_tokens)).int()
    after_end = is_end.cumsum(1) - is_end > 0
    padded = ids.masked_fill(after_end, tokenizer.pad)
    if uses_beams:
        return padded, output.sequences_scores.double(), None

    def score(logits: Tensor) -> Tensor:
        logprobs = logits.float().log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2).double()
        lengths = (~after_end).sum(1)
        return logprobs.masked_fill(after_end, 0).sum(1) / lengths**settings.length_penalty

    if not is_guided:
        return padded, score(torch.stack(output.logits, 1)), None
    # `generate` alternates between a call with the image and a call without it. `calls` has the
    # logits of both; each stack is (rows, L, V).
    image_logits, null_logits = torch.stack(calls[::2], 1), torch.stack(calls[1::2], 1)
    return (
        padded,
        score(guide(image_logits, null_logits, settings.guidance_scale)),
        score(image_logits),
    )


@contextmanager
def _record_logits(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that receives the logits (rows, V) of the last position at each forward call."""
    logits = []

    def record(module, arguments, output):
        logits.append(output.logits[:, -1].clone())

    hook = model.register_forward_hook(record)
    try:
        yield logits
    finally:
        hook.remove()
