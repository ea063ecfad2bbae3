"""Generates captions with transformers' `generate` and the settings of the configuration."""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from decoding import DecodingSettings
from vlm.prompt import NEGATIVE_PROMPT
from vlm.tokenization import CaptionTokenizer

ALWAYS_USED = ("repetition_penalty", "no_repeat_ngram_size", "guidance_scale")
SAMPLING_ONLY = ("top_p", "top_k", "temperature")
BEAMS_ONLY = ("num_beams", "length_penalty")


def generation_config(settings: DecodingSettings, tokenizer: CaptionTokenizer) -> Any:
    """Return the `GenerationConfig` of `settings`. Lengths do not include the prompt.

    `generate` takes options without a setting, such as early_stopping, from the model's own.
    """
    from transformers import GenerationConfig

    uses_beams = settings.num_beams > 1 and not settings.sample
    names = SAMPLING_ONLY if settings.sample else BEAMS_ONLY if uses_beams else ()
    return GenerationConfig(
        max_new_tokens=settings.max_length,
        min_new_tokens=settings.min_length,
        do_sample=settings.sample,
        num_return_sequences=settings.num_return,
        eos_token_id=tokenizer.end_tokens,
        pad_token_id=tokenizer.library_pad,
        return_dict_in_generate=True,
        output_scores=uses_beams,
        output_logits=not uses_beams,
        **{"num_beams": 1} | {name: getattr(settings, name) for name in (*ALWAYS_USED, *names)},
    )


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
    output = model.generate(**inputs, generation_config=generation_config(settings, tokenizer))
    start = inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"].size(1)
    ids = output.sequences[:, start:]
    is_end = torch.isin(ids, ids.new_tensor(tokenizer.end_tokens)).int()
    after_end = is_end.cumsum(1) - is_end > 0
    padded = ids.masked_fill(after_end, tokenizer.pad)
    if output.logits is None:
        return padded, output.sequences_scores.double(), None

    def score(logits: Tensor) -> Tensor:
        logprobs = logits.float().log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2).double()
        lengths = (~after_end).sum(1)
        return logprobs.masked_fill(after_end, 0).sum(1) / lengths**settings.length_penalty

    logits = torch.stack(output.logits, 1)  # (rows, L, V)
    if settings.guidance_scale == 1:
        return padded, score(logits), None
    prompt = inputs[NEGATIVE_PROMPT]
    without_image = model(torch.cat([prompt, ids], 1)).logits[:, prompt.size(1) - 1 : -1]
    guided = without_image + settings.guidance_scale * (logits - without_image)
    return padded, score(guided), score(logits)
