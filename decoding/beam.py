"""Beam search with the semantics of transformers 4.15.0, on tensors throughout."""

import torch
from torch import Tensor

from decoding.interface import Decoded, DecodingSettings, Step
from decoding.sampling import adjust

# The initial score of all beams of a group but the first, so that they do not repeat the first.
NOT_STARTED = -1e9


class Hypotheses:
    """The `num_beams` best ended captions of each prompt, best first."""

    def __init__(self, prompts: int, beams: int, max_length: int, pad: int, device: torch.device):
        shape = (prompts, beams)
        self.scores = torch.full(shape, float("-inf"), dtype=torch.float64, device=device)
        self.tokens = torch.full((*shape, max_length), pad, device=device)
        self.lengths = torch.zeros(shape, dtype=torch.int64, device=device)

    def add(self, prompts: Tensor, tokens: Tensor, scores: Tensor, length: int) -> None:
        """Offer candidates to `prompts` (b,): tokens (b, m, max_length), scores (b, m).

        Scores of -inf are ignored; an equal score does not displace an earlier one.
        """
        beams = self.scores.size(1)
        scores = torch.cat([self.scores[prompts], scores], dim=1)
        tokens = torch.cat([self.tokens[prompts], tokens], dim=1)
        lengths = torch.full_like(scores, length, dtype=torch.int64)
        lengths[:, :beams] = self.lengths[prompts]
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :beams]
        self.scores[prompts] = scores.gather(1, best)
        self.lengths[prompts] = lengths.gather(1, best)
        self.tokens[prompts] = take(tokens, best)


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """tokens (b, m, L) at index (b, k) of dimension 1."""
    return tokens.gather(1, index.unsqueeze(2).expand(-1, -1, tokens.size(2)))


def beam_search(
    step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings
) -> Decoded:
    """The `num_return` best of `num_beams` beams; see `decode`.

    A prompt is done when it has `num_beams` ended captions and its best active beam would not beat
    the worst of them if it ended now; done prompts are not stepped. A score is divided by
    length ** length_penalty; the length counts the prompt and not the end token. The groups of
    `num_beam_groups` choose their beams one after the other.
    """
    beams, max_length = settings.num_beams, settings.max_length
    group_size = beams // settings.num_beam_groups
    prompts, start = prompt.shape
    ended = Hypotheses(prompts, beams, max_length, pad, prompt.device)
    active = torch.arange(prompts, device=prompt.device)  # (b,), prompts that are not done
    tokens = prompt.new_full((prompts, beams, max_length), pad)
    tokens[..., :start] = prompt.unsqueeze(1)
    scores = torch.full((prompts, beams), NOT_STARTED, device=prompt.device)
    scores[:, ::group_size] = 0

    logits = step(prompt.unsqueeze(1), None).expand(-1, beams, -1)  # (b, k, V)
    rows = active.unsqueeze(1).expand(-1, beams)  # the first step had one row per prompt
    for length in range(start, max_length):
        done = torch.zeros_like(active, dtype=torch.bool)
        chosen: list[tuple[Tensor, ...]] = []  # by group: scores, beams and words, (b, k')
        for first in range(0, beams, group_size):
            group = slice(first, first + group_size)
            logprobs = logits[:, group].float().log_softmax(-1)
            if chosen and settings.diversity_penalty:
                words = torch.cat([word for *_, word in chosen], dim=1)
                logprobs = logprobs - settings.diversity_penalty * _counts(words, logprobs)
            logprobs = adjust(logprobs, tokens[:, group, :length], end, settings)
            total = (logprobs + scores[:, group].unsqueeze(2)).flatten(1)
            top, index = total.topk(2 * group_size, dim=1)
            beam, word = first + index // logits.size(2), index % logits.size(2)  # (b, 2k')
            normalised = top.double() / length**settings.length_penalty

            ends = word == end
            candidates = take(tokens, beam[:, :group_size])
            candidates[..., length] = end
            none = ~ends[:, :group_size] | done.unsqueeze(1)
            offered = normalised[:, :group_size].masked_fill(none, float("-inf"))
            ended.add(active, candidates, offered, length)

            continued = ends.int().sort(dim=1, stable=True).indices[:, :group_size]
            chosen.append(tuple(t.gather(1, continued) for t in (top, beam, word)))
            worst = ended.scores[active, -1]  # -inf where there are fewer than `num_beams`
            done = done | ((worst >= normalised[:, 0]) & worst.isfinite())

        scores, beam, word = (torch.cat(each, dim=1) for each in zip(*chosen))
        tokens = take(tokens, beam)
        tokens[..., length] = word
        # Positions, because indexing with a mask synchronises with a GPU at every use.
        keep = (~done).nonzero().squeeze(1)
        rows = rows.gather(1, beam)[keep]
        active, tokens, scores, word = active[keep], tokens[keep], scores[keep], word[keep]
        if len(active) == 0:
            break
        if length + 1 < max_length:
            logits = step(word.unsqueeze(2), rows)
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)

    # The clamp keeps beams of which every next word was banned: there always is a caption.
    scores = scores.double().clamp(min=torch.finfo(scores.dtype).min)
    ended.add(active, tokens, scores / max_length**settings.length_penalty, max_length)
    kept = slice(settings.num_return)
    width = min(int(ended.lengths[:, kept].max()) + 1, max_length)
    return Decoded(ended.tokens[:, kept, :width], ended.scores[:, kept])


def _counts(words: Tensor, like: Tensor) -> Tensor:
    """(b, 1, V): how often each word of the vocabulary is among words (b, m)."""
    counts = like.new_zeros(len(words), like.size(2))
    return counts.scatter_add_(1, words, torch.ones_like(words, dtype=like.dtype)).unsqueeze(1)
