"""Generates captions token by token: takes the best token (greedy) or samples one."""

import torch
from torch import Tensor

from decoding.interface import Decoded, DecodingSettings, Step, caption_lengths, trimmed


def greedy_or_sample(
    step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings
) -> Decoded:
    """Return `num_return` captions per prompt, greedy or sampled; see `decode` for the arguments.

    When all captions of a prompt have ended, `step` is called without this prompt.
    """
    num_captions, max_length = settings.num_return, settings.max_length
    num_prompts, start = prompt.shape
    active = torch.arange(num_prompts, device=prompt.device)  # (b,), not all ended
    tokens = prompt.new_full((num_prompts, num_captions, max_length), pad)
    tokens[..., :start] = prompt.unsqueeze(1)
    scores = torch.zeros_like(tokens[..., 0], dtype=torch.float64)
    if settings.sample:
        noise = _uniform_noise(num_prompts, settings).to(prompt.device)

    logits = step(prompt.unsqueeze(1), None).expand(-1, num_captions, -1)  # (b, k, V)
    step_rows = 1  # rows per prompt in the latest call of `step`
    for length in range(start, max_length):
        adjusted = adjust_scores(logits.float(), tokens[active, :, :length], end, settings)
        if settings.sample:
            probabilities = warp_scores(adjusted, settings).softmax(-1)
            next_tokens = draw_tokens(probabilities, noise[active, :, length])
        else:
            next_tokens = adjusted.argmax(-1)
        has_ended = (tokens[active, :, start:length] == end).any(-1)  # (b, k)
        next_tokens = next_tokens.masked_fill(has_ended, pad)
        tokens[active, :, length] = next_tokens
        logprobs = logits.float().log_softmax(-1).gather(2, next_tokens.unsqueeze(2)).squeeze(2)
        scores[active] += logprobs.masked_fill(has_ended, 0)

        kept = (~has_ended & (next_tokens != end)).any(1).nonzero().squeeze(1)
        active = active[kept]
        if len(active) == 0:
            break
        if length + 1 < max_length:
            captions = torch.arange(num_captions, device=kept.device)
            rows = kept.unsqueeze(1) * step_rows + captions % step_rows
            logits, step_rows = step(next_tokens[kept].unsqueeze(2), rows), num_captions

    lengths = caption_lengths(tokens, start, end)
    return Decoded(trimmed(tokens, start, end), scores / lengths**settings.length_penalty)


def adjust_scores(scores: Tensor, tokens: Tensor, end: int, settings: DecodingSettings) -> Tensor:
    """Apply the repetition penalty, `no_repeat_ngram_size` and `min_length` to scores (..., V).

    tokens: int64 (..., n), the prompt and all tokens so far. The score of each of these tokens is
    multiplied by the repetition penalty if the score is negative, and divided by the penalty if it
    is positive (CTRL, arXiv 1909.05858, in the form of transformers 4.15.0).
    """
    if settings.repetition_penalty != 1:
        repeated = scores.gather(-1, tokens)
        penalty = settings.repetition_penalty
        repeated = torch.where(repeated < 0, repeated * penalty, repeated / penalty)
        scores = scores.scatter(-1, tokens, repeated)
    size = settings.no_repeat_ngram_size
    if 0 < size <= tokens.size(-1):
        scores = _ban_repeated_ngrams(scores, tokens, size)
    if tokens.size(-1) < settings.min_length:
        scores = scores.index_fill(-1, torch.tensor(end, device=scores.device), float("-inf"))
    return scores


def _ban_repeated_ngrams(scores: Tensor, tokens: Tensor, size: int) -> Tensor:
    """Ban the tokens that would complete an n-gram of `size` tokens a second time."""
    ngrams = tokens.unfold(-1, size, 1)  # (..., n - size + 1, size)
    next_prefix = tokens[..., tokens.size(-1) - size + 1 :].unsqueeze(-2)  # (..., 1, size - 1)
    is_repeat = (ngrams[..., :-1] == next_prefix).all(-1)
    # A token may end several n-grams, so that flags are summed. One repetition bans the token.
    repeats = torch.zeros_like(scores).scatter_add(-1, ngrams[..., -1], is_repeat.to(scores.dtype))
    return scores.masked_fill(repeats > 0, float("-inf"))


def _uniform_noise(num_prompts: int, settings: DecodingSettings) -> Tensor:
    """Return uniform numbers in [0, 1), float64 (num_prompts, num_return, max_length).

    Each prompt has a generator, whose seed is in `settings.seeds` or drawn from torch's global one.
    """
    shape = settings.num_return, settings.max_length
    seeds = settings.seeds or torch.randint(2**62, (num_prompts,)).tolist()
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in generators])


def draw_tokens(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Sample a token id (...) from each row of (..., V) by its inverse cumulative distribution.

    uniform: (...), random numbers in [0, 1). A token of probability 0 is never chosen. A row that
    is not finite gives an arbitrary id, whose log-probability is not finite either.
    """
    cumulative = probabilities.double().cumsum(-1)  # (..., V)
    totals = cumulative[..., -1:]
    # The product may round up to the total, for which searchsorted would find no token, so that
    # thresholds are kept below the total.
    thresholds = uniform.unsqueeze(-1) * totals
    thresholds = thresholds.minimum(totals.nextafter(torch.zeros_like(totals)))
    token_ids = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)
    return token_ids.clamp(max=cumulative.size(-1) - 1)  # for rows that are not finite


def warp_scores(scores: Tensor, settings: DecodingSettings) -> Tensor:
    """Apply temperature, top_k and top_p, in this order, to scores (..., V).

    top_p keeps the fewest best tokens whose total probability exceeds top_p (arXiv 1904.09751).
    Both always keep the best token.
    """
    scores = scores / settings.temperature
    if settings.top_k:
        kth_best = scores.topk(min(settings.top_k, scores.size(-1)), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth_best, float("-inf"))
    if settings.top_p < 1:
        sorted_scores, order = scores.sort(dim=-1, descending=True)
        probabilities = sorted_scores.softmax(-1)
        removed = probabilities.cumsum(-1) - probabilities > settings.top_p
        scores = scores.masked_fill(removed.scatter(-1, order, removed), float("-inf"))
    return scores
