"""Implements beam search, vectorised over prompts and beams.

Results equal those of transformers 4.15.0.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.interface import Decoded, DecodingSettings, Step, take_rows
from decoding.sampling import adjust_scores

# The initial score of all beams of a group except the first. The group's beams begin with the same
# prompt, so that with equal scores all of them would repeat the first.
NOT_STARTED = -1e9


class Hypotheses:
    """The best captions of each prompt that have ended, at most k, the best first.

    tokens: (B, k, max_length), the beams before the first step. They have the score -inf, so that
    captions replace them.
    """

    def __init__(self, tokens: Tensor):
        self.tokens = tokens.clone()
        self.lengths = torch.zeros_like(tokens[..., 0])
        self.scores = torch.full_like(self.lengths, -torch.inf, dtype=torch.float64)

    def add(self, prompts: Tensor, tokens: Tensor, scores: Tensor, length: int) -> None:
        """Keep, for each of the b `prompts`, the best of the stored captions and m candidates.

        prompts: (b,), indices. tokens: (b, m, max_length), the candidates. scores: (b, m); -inf
        means that there is no candidate. length: the number of tokens of each candidate, without
        the end token. A candidate does not replace a caption with an equal score.
        """
        beams = self.scores.size(1)
        scores = torch.cat([self.scores[prompts], scores], dim=1)
        tokens = torch.cat([self.tokens[prompts], tokens], dim=1)
        lengths = torch.full_like(scores, length, dtype=torch.int64)
        lengths[:, :beams] = self.lengths[prompts]
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :beams]
        self.scores[prompts] = scores.gather(1, order)
        self.lengths[prompts] = lengths.gather(1, order)
        self.tokens[prompts] = take_rows(tokens, order)

    def best(self, count: int) -> Decoded:
        """Return the `count` best captions of each prompt."""
        max_length = self.tokens.size(2)
        width = min(int(self.lengths[:, :count].max()) + 1, max_length)
        return Decoded(self.tokens[:, :count, :width], self.scores[:, :count])


class Beams(NamedTuple):
    """The unfinished captions of b prompts, k of each.

    prompts: (b,), indices. tokens: (b, k, max_length). scores: (b, k), the sum of
    log-probabilities.
    """

    prompts: Tensor
    tokens: Tensor
    scores: Tensor


class Continuations(NamedTuple):
    """Continuations of b prompts' beams by one token, the best first; (b, m) each.

    scores: the sum of log-probabilities. beam: the index of the continued beam. token: its next
    token.
    """

    scores: Tensor
    beam: Tensor
    token: Tensor


def beam_search(
    step: Step, prompt: Tensor, end: int, pad: int, settings: DecodingSettings
) -> Decoded:
    """Return the `num_return` best of `num_beams` beams; see `decode`.

    A prompt is done when `num_beams` of its captions have ended, and the worst of these captions
    scores at least as high as the best continuation of a group. `step` is then called without this
    prompt. `Decoded` defines scores.
    """
    num_beams, max_length = settings.num_beams, settings.max_length
    num_prompts, start = prompt.shape
    tokens = prompt.new_full((num_prompts, num_beams, max_length), pad)
    tokens[..., :start] = prompt.unsqueeze(1)
    hypotheses = Hypotheses(tokens)
    scores = torch.full((num_prompts, num_beams), NOT_STARTED, device=prompt.device)
    scores[:, :: num_beams // settings.num_beam_groups] = 0
    beams = Beams(torch.arange(num_prompts, device=prompt.device), tokens, scores)

    logits = step(prompt.unsqueeze(1), None).expand(-1, num_beams, -1)  # (b, k, V)
    rows = beams.prompts.unsqueeze(1).expand(-1, num_beams)  # the first step had a row per prompt
    for length in range(start, max_length):
        chosen, done = _continue_groups(logits, beams, length, end, hypotheses, settings)
        tokens = take_rows(beams.tokens, chosen.beam)
        tokens[..., length] = chosen.token
        # Each indexing with a mask would synchronise with a GPU. `nonzero` synchronises once.
        kept = (~done).nonzero().squeeze(1)
        beams = Beams(beams.prompts[kept], tokens[kept], chosen.scores[kept])
        if len(kept) == 0:
            break
        if length + 1 < max_length:
            rows = rows.gather(1, chosen.beam)[kept]
            logits = step(chosen.token[kept].unsqueeze(2), rows)
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)

    # A beam's score is -inf if every next token was banned. The clamp makes the score finite, so
    # that the beam is kept and every prompt has a caption.
    scores = beams.scores.double().clamp(min=torch.finfo(beams.scores.dtype).min)
    scores = scores / max_length**settings.length_penalty
    hypotheses.add(beams.prompts, beams.tokens, scores, max_length)
    return hypotheses.best(settings.num_return)


def _continue_groups(
    logits: Tensor,
    beams: Beams,
    length: int,
    end: int,
    hypotheses: Hypotheses,
    settings: DecodingSettings,
) -> tuple[Continuations, Tensor]:
    """Let each group of beams choose its next tokens, one group after the other.

    logits: (b, k, V). length: the number of tokens of each beam. Adds the captions that end to
    `hypotheses`. Returns the continuations of all k beams, and which prompts are done, bool (b,).
    """
    group_size = settings.num_beams // settings.num_beam_groups
    done = torch.zeros_like(beams.prompts, dtype=torch.bool)
    chosen: list[Continuations] = []  # k' continuations of each group
    for offset in range(0, settings.num_beams, group_size):
        group = slice(offset, offset + group_size)
        logprobs = logits[:, group].float().log_softmax(-1)
        if chosen and settings.diversity_penalty:
            logprobs = _diversify(logprobs, chosen, settings.diversity_penalty)
        logprobs = adjust_scores(logprobs, beams.tokens[:, group, :length], end, settings)
        best = _best_continuations(logprobs + beams.scores[:, group].unsqueeze(2), offset)
        normalised = best.scores.double() / length**settings.length_penalty

        is_end = best.token == end
        candidates = take_rows(beams.tokens, best.beam[:, :group_size])
        candidates[..., length] = end
        is_candidate = is_end[:, :group_size] & ~done.unsqueeze(1)
        candidate_scores = normalised[:, :group_size].where(is_candidate, float("-inf"))
        hypotheses.add(beams.prompts, candidates, candidate_scores, length)

        continuing = is_end.int().sort(dim=1, stable=True).indices[:, :group_size]
        chosen.append(Continuations(*(field.gather(1, continuing) for field in best)))
        # The score is -inf as long as a prompt has fewer than `num_beams` captions.
        worst = hypotheses.scores[beams.prompts, -1]
        done = done | ((worst >= normalised[:, 0]) & worst.isfinite())
    return Continuations(*(torch.cat(fields, dim=1) for fields in zip(*chosen))), done


def _diversify(logprobs: Tensor, chosen: list[Continuations], penalty: float) -> Tensor:
    """Lower the log-probabilities (b, k', V) of tokens that earlier groups have chosen."""
    earlier_tokens = torch.cat([continuations.token for continuations in chosen], dim=1)
    counts = F.one_hot(earlier_tokens, logprobs.size(2)).sum(1, keepdim=True)  # (b, 1, V)
    return logprobs - penalty * counts


def _best_continuations(sums: Tensor, offset: int) -> Continuations:
    """Return the 2 k' best continuations of a group of k' beams, (b, 2 k').

    sums: (b, k', V), the sum of log-probabilities after each next token. offset: the index of the
    group's first beam.
    """
    _, group_size, vocabulary = sums.shape
    top_sums, top_index = sums.flatten(1).topk(2 * group_size, dim=1)
    return Continuations(top_sums, offset + top_index // vocabulary, top_index % vocabulary)
