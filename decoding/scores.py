"""What is done to the scores of the next token before one is chosen."""

import torch
from torch import Tensor

from decoding.settings import DecodingSettings


def adjust(scores: Tensor, tokens: Tensor, end: int, settings: DecodingSettings) -> Tensor:
    """Scores (..., V) after the repetition penalty and with no end before `min_length`.

    tokens: int64 (..., n), all tokens so far, the prompt's included. A repeated token's score is
    multiplied by the penalty where it is negative and divided by it where it is positive (CTRL,
    arXiv 1909.05858, in the form of transformers 4.15.0).
    """
    if settings.repetition_penalty != 1:
        seen = scores.gather(-1, tokens)
        penalty = settings.repetition_penalty
        scores = scores.scatter(-1, tokens, torch.where(seen < 0, seen * penalty, seen / penalty))
    if tokens.size(-1) < settings.min_length:
        scores = scores.index_fill(-1, torch.tensor(end, device=scores.device), float("-inf"))
    return scores


def warp(scores: Tensor, settings: DecodingSettings) -> Tensor:
    """Scores (..., V) for sampling: temperature, then the `top_k` best, then the nucleus `top_p`.

    The nucleus is the smallest set of best tokens whose probability exceeds top_p (arXiv
    1904.09751); the best token always stays.
    """
    scores = scores / settings.temperature
    if settings.top_k:
        worst = scores.topk(min(settings.top_k, scores.size(-1)), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < worst, float("-inf"))
    if settings.top_p < 1:
        ranked, order = scores.sort(dim=-1, descending=True)
        mass = ranked.softmax(-1).cumsum(-1)
        outside = (mass - ranked.softmax(-1)) > settings.top_p
        scores = scores.masked_fill(outside.scatter(-1, order, outside), float("-inf"))
    return scores
