"""Beam search with the semantics of transformers 4.15.0, on tensors throughout."""

import torch
from torch import Tensor

from decoding.interface import Decoded, DecodingSettings, Step
from decoding.sampling import adjust

# What the beams of one prompt but the first start from, so that they do not repeat the first.
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

        A candidate of score -inf is none; an equal score does not displace an earlier one.
        """
        beams = self.scores.size(1)
        scores = torch.cat([self.scores[prompts], scores], dim=1)
        tokens = torch.cat([self.tokens[prompts], tokens], dim=1)
        offered = torch.full_like(tokens[:, beams:, 0], length)
        lengths = torch.cat([self.lengths[prompts], offered], dim=1)
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

    A prompt is done when it has `num_beams` ended captions and the best living beam, were it to
    end now, would not beat the worst of them; from then on it costs nothing. Scores are divided by
    the length without the end token ** length_penalty, the prompt's tokens counted. The beams of
    `num_beam_groups` choose one group after the other, each among its own.
    """
    beams, max_length = settings.num_beams, settings.max_length
    of_group = beams // settings.num_beam_groups
    prompts, start = prompt.shape
    ended = Hypotheses(prompts, beams, max_length, pad, prompt.device)
    live = torch.arange(prompts, device=prompt.device)  # (b,)
    tokens = prompt.new_full((prompts, beams, max_length), pad)
    tokens[..., :start] = prompt.unsqueeze(1)
    scores = torch.full((prompts, beams), NOT_STARTED, device=prompt.device)
    scores[:, ::of_group] = 0

    logits = step(prompt.unsqueeze(1), None).expand(-1, beams, -1)  # (b, k, V)
    rows = live.unsqueeze(1).expand(-1, beams)  # the first step had one row a prompt
    for length in range(start, max_length):
        over = torch.zeros_like(live, dtype=torch.bool)
        chosen: list[tuple[Tensor, ...]] = []  # by group: scores, beams and words, (b, k')
        for first in range(0, beams, of_group):
            group = slice(first, first + of_group)
            logprobs = logits[:, group].float().log_softmax(-1)
            if chosen and settings.diversity_penalty:
                words = torch.cat([word for *_, word in chosen], dim=1)
                logprobs = logprobs - settings.diversity_penalty * _counted(words, logprobs)
            logprobs = adjust(logprobs, tokens[:, group, :length], end, settings)
            total = (logprobs + scores[:, group].unsqueeze(2)).flatten(1)
            top, index = total.topk(2 * of_group, dim=1)
            beam, word = first + index // logits.size(2), index % logits.size(2)  # (b, 2k')
            normalised = top.double() / length**settings.length_penalty

            ends = word == end
            candidates = take(tokens, beam[:, :of_group])
            candidates[..., length] = end
            offered = normalised[:, :of_group]
            none = ~ends[:, :of_group] | over.unsqueeze(1)
            ended.add(live, candidates, offered.masked_fill(none, float("-inf")), length)

            goes_on = ends.int().sort(dim=1, stable=True).indices[:, :of_group]
            chosen.append(tuple(t.gather(1, goes_on) for t in (top, beam, word)))
            worst = ended.scores[live, -1]  # -inf is a free place
            over = over | ((worst >= normalised[:, 0]) & worst.isfinite())

        scores, beam, word = (torch.cat(each, dim=1) for each in zip(*chosen))
        tokens = take(tokens, beam)
        tokens[..., length] = word
        alive = (~over).nonzero().squeeze(1)  # a mask would make a GPU be waited for at every use
        rows = rows.gather(1, beam)[alive]
        live, tokens, scores, word = live[alive], tokens[alive], scores[alive], word[alive]
        if len(live) == 0:
            break
        if length + 1 < max_length:
            logits = step(word.unsqueeze(2), rows)
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)

    # Of beams that no word could follow there is a caption, too.
    scores = scores.double().clamp(min=torch.finfo(scores.dtype).min)
    ended.add(live, tokens, scores / max_length**settings.length_penalty, max_length)
    kept = slice(settings.num_return)
    width = min(int(ended.lengths[:, kept].max()) + 1, max_length)
    return Decoded(ended.tokens[:, kept, :width], ended.scores[:, kept])


def _counted(words: Tensor, like: Tensor) -> Tensor:
    """(b, 1, V) of words (b, m): how often each of the vocabulary is among them."""
    counts = like.new_zeros(len(words), like.size(2))
    return counts.scatter_add_(1, words, torch.ones_like(words, dtype=like.dtype)).unsqueeze(1)
