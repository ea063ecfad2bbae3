"""Decoding one token at a time: the best one (greedy), or one drawn at random."""

import torch
from torch import Tensor

from decoding.scores import adjust, warp
from decoding.settings import DecodingSettings
from decoding.step import Decoded, Step


def sample(step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings) -> Decoded:
    """`num_return` captions a prompt, greedy or sampled; see `decode`.

    A prompt whose captions have all ended costs nothing any more.
    """
    captions, max_length = settings.num_return, settings.max_length
    prompts, start = prompt.shape
    live = torch.arange(prompts, device=prompt.device)
    tokens = prompt.new_full((prompts, captions, max_length), pad)
    tokens[..., :start] = prompt.unsqueeze(1)
    scores = torch.zeros(prompts, captions, dtype=torch.float64, device=prompt.device)
    lengths = torch.full_like(tokens[..., 0], max_length)

    logits = step(prompt.unsqueeze(1), None).expand(-1, captions, -1)  # (b, k, V)
    rows = live.unsqueeze(1).expand(-1, captions)
    for length in range(start, max_length):
        adjusted = adjust(logits.float(), tokens[live, :, :length], end, settings)
        word = draw(adjusted, settings) if settings.sample else adjusted.argmax(-1)
        over = lengths[live] < max_length  # (b, k)
        word = word.masked_fill(over, pad)
        logprob = logits.float().log_softmax(-1).gather(2, word.unsqueeze(2)).squeeze(2)
        scores[live] += logprob.masked_fill(over, 0)
        tokens[live, :, length] = word
        lengths[live] = lengths[live].where(over | (word != end), torch.tensor(length).to(word))

        alive = (lengths[live] == max_length).any(1)
        live, rows, word = live[alive], rows[alive], word[alive]
        if len(live) == 0:
            break
        if length + 1 < max_length:
            logits = step(word.unsqueeze(2), rows)
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)

    width = min(int(lengths.max()) + 1, max_length)
    return Decoded(tokens[..., :width], scores / lengths**settings.length_penalty)


def draw(scores: Tensor, settings: DecodingSettings) -> Tensor:
    """One token id for each row of scores (b, k, V), from torch's global generator."""
    probabilities = warp(scores, settings).softmax(-1)
    return torch.multinomial(probabilities.flatten(0, 1), 1).view(scores.shape[:2])
