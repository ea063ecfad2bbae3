"""Decoding one token at a time: the best one (greedy) or a random sample."""

import torch
from torch import Tensor

from decoding.interface import Decoded, DecodingSettings, Step


def sample(step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings) -> Decoded:
    """`num_return` captions per prompt, greedy or sampled; see `decode`.

    Prompts whose captions have all ended are not stepped.
    """
    captions, max_length = settings.num_return, settings.max_length
    prompts, start = prompt.shape
    active = torch.arange(prompts, device=prompt.device)
    tokens = prompt.new_full((prompts, captions, max_length), pad)
    tokens[..., :start] = prompt.unsqueeze(1)
    scores = torch.zeros(prompts, captions, dtype=torch.float64, device=prompt.device)
    lengths = torch.full_like(tokens[..., 0], max_length)
    noise = None
    if settings.sample and settings.seeds is not None:
        noise = _uniform(settings.seeds, captions, max_length).to(prompt.device)

    logits = step(prompt.unsqueeze(1), None).expand(-1, captions, -1)  # (b, k, V)
    rows = active.unsqueeze(1).expand(-1, captions)
    for length in range(start, max_length):
        adjusted = adjust(logits.float(), tokens[active, :, :length], end, settings)
        if settings.sample:
            probabilities = warp(adjusted, settings).softmax(-1).flatten(0, 1)
            if noise is None:
                word = draw(probabilities).view(adjusted.shape[:2])
            else:
                word = invert(probabilities, noise[active, :, length].flatten())
                word = word.view(adjusted.shape[:2])
        else:
            word = adjusted.argmax(-1)
        done = lengths[active] < max_length  # (b, k)
        word = word.masked_fill(done, pad)
        logprob = logits.float().log_softmax(-1).gather(2, word.unsqueeze(2)).squeeze(2)
        scores[active] += logprob.masked_fill(done, 0)
        tokens[active, :, length] = word
        lengths[active] = lengths[active].where(done | (word != end), torch.tensor(length).to(word))

        keep = (lengths[active] == max_length).any(1).nonzero().squeeze(1)
        active, rows, word = active[keep], rows[keep], word[keep]
        if len(active) == 0:
            break
        if length + 1 < max_length:
            logits = step(word.unsqueeze(2), rows)
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)

    width = min(int(lengths.max()) + 1, max_length)
    return Decoded(tokens[..., :width], scores / lengths**settings.length_penalty)


def adjust(scores: Tensor, tokens: Tensor, end: int, settings: DecodingSettings) -> Tensor:
    """Apply the repetition penalty, `no_repeat_ngram_size` and `min_length` to scores (..., V).

    tokens: int64 (..., n), all tokens so far, with the prompt. A repeated token's score is
    multiplied by the penalty if negative and divided by it if positive (CTRL, arXiv 1909.05858, in
    the form of transformers 4.15.0).
    """
    if settings.repetition_penalty != 1:
        seen = scores.gather(-1, tokens)
        penalty = settings.repetition_penalty
        scores = scores.scatter(-1, tokens, torch.where(seen < 0, seen * penalty, seen / penalty))
    size = settings.no_repeat_ngram_size
    if 0 < size <= tokens.size(-1):
        scores = _without_repeats(scores, tokens, size)
    if tokens.size(-1) < settings.min_length:
        scores = scores.index_fill(-1, torch.tensor(end, device=scores.device), float("-inf"))
    return scores


def _without_repeats(scores: Tensor, tokens: Tensor, size: int) -> Tensor:
    """Ban the words that would complete an n-gram of `size` tokens a second time."""
    runs = tokens.unfold(-1, size, 1)  # (..., n - size + 1, size)
    latest = tokens[..., tokens.size(-1) - size + 1 :].unsqueeze(
        -2
    )  # the beginning of the next n-gram
    again = (runs[..., :-1] == latest).all(-1)
    # A sum, because a word may end several n-grams, of which one repetition is enough.
    penalty = torch.zeros_like(scores).scatter_add(-1, runs[..., -1], again.to(scores.dtype))
    return scores.masked_fill(penalty > 0, float("-inf"))


def draw(probabilities: Tensor) -> Tensor:
    """Sample a word from each row of (n, V): int64 (n,), equal to torch.multinomial's.

    Rows that are not finite give an arbitrary word, whose log-probability is not finite either.
    torch.multinomial would check for them, which synchronises with a GPU at every word, and abort.
    """
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def _uniform(seeds: tuple[int, ...], captions: int, length: int) -> Tensor:
    """Uniform numbers below 1 from a generator for each seed: float64 (seeds, captions, length)."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    shape = (captions, length)
    return torch.stack([torch.rand(shape, generator=g, dtype=torch.float64) for g in generators])


def invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The words at which the cumulative probabilities of (n, V) exceed `uniform` (n,): int64 (n,).

    With uniform numbers from 0 to 1 the words are samples. A word of probability 0 is never chosen.
    """
    total = probabilities.double().cumsum(-1)  # (n, V)
    last = total[:, -1]
    # The product may round up to the total, which no cumulative probability exceeds.
    reached = (uniform * last).minimum(last.nextafter(torch.zeros_like(last)))
    found = torch.searchsorted(total, reached.unsqueeze(1), right=True).squeeze(1)
    return found.clamp(max=total.size(1) - 1)  # only rows that are not finite need the limit


def warp(scores: Tensor, settings: DecodingSettings) -> Tensor:
    """Apply temperature, top_k, top_p, min_p and typical_p, in this order, to scores (..., V).

    top_p keeps the smallest set of best tokens whose probability exceeds it (arXiv 1904.09751).
    min_p keeps tokens at least that many times as likely as the best one (arXiv 2407.01082). The
    best token is always kept.
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
    if settings.min_p:
        probabilities = scores.softmax(-1)
        least = settings.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(probabilities < least, float("-inf"))
    if settings.typical_p < 1:
        scores = _typical(scores, settings.typical_p)
    return scores


def _typical(scores: Tensor, mass: float) -> Tensor:
    """Keep the tokens whose surprisal is nearest to the entropy, up to a probability of `mass`.

    Ties with the last one are kept (arXiv 2202.00666).
    """
    log_p = scores.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p).nansum(-1, keepdim=True)
    distance = (-log_p - entropy).abs()
    nearest, order = distance.sort(dim=-1)
    short = (p.gather(-1, order).cumsum(-1) < mass).sum(-1, keepdim=True)
    furthest = nearest.gather(-1, short.clamp(max=scores.size(-1) - 1))
    return scores.masked_fill(distance > furthest, float("-inf"))
