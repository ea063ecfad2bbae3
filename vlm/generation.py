"""Generates captions with transformers' `generate` and the settings of the configuration."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Optional

import torch
from torch import Tensor, nn

from decoding import DecodingSettings
from decoding.guided import combine_streams
from vlm.tokenization import CaptionTokenizer

SAME_NAMES = ("length_penalty", "repetition_penalty", "no_repeat_ngram_size", "guidance_scale")
SAMPLING = ("top_p", "top_k", "temperature", "min_p", "typical_p")


def generation_config(model: nn.Module, settings: DecodingSettings, tokenizer: CaptionTokenizer):
    """The model's generation config, overridden by the settings. Lengths count caption tokens.

    Values that have no setting, such as early_stopping, keep the model's default.
    """
    config, sample = copy.deepcopy(model.generation_config), settings.sample
    config.max_length = config.min_length = None
    config.max_new_tokens, config.min_new_tokens = settings.max_length, settings.min_length
    config.num_beams = 1 if sample else settings.num_beams
    config.do_sample, config.num_return_sequences = sample, settings.num_return
    for name in (*SAME_NAMES, *SAMPLING):
        used = sample or name not in SAMPLING
        setattr(config, name, getattr(settings, name) if used else None)
    config.eos_token_id, config.pad_token_id = tokenizer.ends, tokenizer.library_pad
    config.return_dict_in_generate = True
    return config


@torch.inference_mode()
def generate(
    model: nn.Module,
    inputs: dict[str, Tensor],
    settings: DecodingSettings,
    tokenizer: CaptionTokenizer,
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Token ids of captions (B * num_return, L), padded with -1 after the end, and two scores.

    Scores are float64 (B * num_return,). Beam search returns the scores of transformers. Otherwise
    a score is the sum of log-probabilities / length ** length_penalty. Both include the end token.
    The second scores are those of the model alone under guidance, otherwise None.
    """
    config = generation_config(model, settings, tokenizer)
    beams, guided = config.num_beams > 1, settings.guidance_scale != 1
    config.output_scores, config.output_logits = beams, not (beams or guided)
    with _recorded(model) if guided else nullcontext([]) as calls:
        output = model.generate(**inputs, generation_config=config)
    prefix = inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"].size(1)
    ids = output.sequences[:, prefix:]
    ended = torch.isin(ids, ids.new_tensor(tokenizer.ends)).int()
    after_end = ended.cumsum(1) - ended > 0
    padded = ids.masked_fill(after_end, tokenizer.pad)
    if beams:
        return padded, output.sequences_scores.double(), None

    def score(logits: Tensor) -> Tensor:
        logprobs = logits.float().log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2).double()
        lengths = (~after_end).sum(1)
        return logprobs.masked_fill(after_end, 0).sum(1) / lengths**settings.length_penalty

    if not guided:
        return padded, score(torch.stack(output.logits, 1)), None
    # `generate` calls the model with and without the image in turn.
    own, other = (torch.stack(calls[start::2], 1) for start in (0, 1))  # (rows, L, V)
    return padded, score(combine_streams(own, other, settings)), score(own)


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
