"""Implements beam search, vectorised over prompts and beams.

Results equal those of transformers 4.15.0.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.interface import Decoded, DecodingSettings, Step, trimmed
from decoding.sampling import adjust_scores

# The initial score of all beams of a group except the first. The group's beams begin with the same
# prompt, so that with equal scores all of them would repeat the first.
NOT_STARTED = -1e9


class Beams(NamedTuple):
    """Captions of b prompts, k of each.

    tokens: (b, k, max_length). scores: (b, k). The score of a caption that has ended is its sum of
    log-probabilities divided by length ** length_penalty, otherwise it is the sum. Ended captions
    are sorted, the best first. A score of -inf means that there is no caption yet.
    """

    tokens: Tensor
    scores: Tensor

    def add(self, prompts: Tensor, tokens: Tensor, scores: Tensor) -> None:
        """Keep, for each of the p `prompts`, the k best of the ended captions and m candidates.

        - prompts: (p,), indices
        - tokens: (p, m, max_length)
        - scores: (p, m); -inf means that there is no candidate

        A candidate does not replace a caption with an equal score.
        """
        scores = torch.cat([self.scores[prompts], scores], dim=1)
        tokens = torch.cat([self.tokens[prompts], tokens], dim=1)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.scores.size(1)]
        self.scores[prompts] = scores.gather(1, order)
        self.tokens[prompts] = tokens.take_along_dim(order.unsqueeze(2), 1)


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
    scores = torch.full((num_prompts, num_beams), NOT_STARTED, device=prompt.device)
    scores[:, :: num_beams // settings.num_beam_groups] = 0
    beams = Beams(tokens, scores)
    ended = Beams(tokens.clone(), torch.full_like(scores, -torch.inf, dtype=torch.float64))
    prompts = torch.arange(num_prompts, device=prompt.device)  # (b,), those of `beams`

    logits = step(prompt.unsqueeze(1), None).expand(-1, num_beams, -1)  # (b, k, V)
    step_rows = 1  # rows per prompt in the latest call of `step`
    for length in range(start, max_length):
        logprobs = logits.float().log_softmax(-1)
        scores, beam, token, done = _continue_groups(
            logprobs, beams, length, end, prompts, ended, settings
        )
        tokens = beams.tokens.take_along_dim(beam.unsqueeze(2), 1)
        tokens[..., length] = token
        # Each indexing with a mask would synchronise with a GPU. `nonzero` synchronises once.
        kept = (~done).nonzero().squeeze(1)
        prompts, beams = prompts[kept], Beams(tokens[kept], scores[kept])
        if len(kept) == 0:
            break
        if length + 1 < max_length:
            rows = kept.unsqueeze(1) * step_rows + beam[kept] % step_rows
            logits, step_rows = step(token[kept].unsqueeze(2), rows), num_beams

    # A beam's score is -inf if every next token was banned. The clamp makes the score finite, so
    # that the beam is kept and every prompt has a caption.
    scores = beams.scores.double().clamp(min=torch.finfo(beams.scores.dtype).min)
    ended.add(prompts, beams.tokens, scores / max_length**settings.length_penalty)
    tokens, scores = (field[:, : settings.num_return] for field in ended)
    return Decoded(trimmed(tokens, start, end), scores)


def _continue_groups(
    logprobs: Tensor,
    beams: Beams,
    length: int,
    end: int,
    prompts: Tensor,
    ended: Beams,
    settings: DecodingSettings,
) -> list[Tensor]:
    """Let each group of beams choose its next tokens, one group after the other.

    - logprobs: (b, k, V), of the next tokens
    - length: the number of tokens of each beam
    - prompts: (b,), the indices of the beams' prompts in `ended`
    - ended: the captions that end now are added

    Returns, for each of k continued beams, the sum of log-probabilities, the index of the beam that
    it continues, and its next token, (b, k) each; and which prompts are done, bool (b,).
    """
    vocabulary, group_size = logprobs.size(2), settings.num_beams // settings.num_beam_groups
    done = torch.zeros_like(prompts, dtype=torch.bool)
    chosen = []  # (sums, beams, tokens) of each group
    for offset in range(0, settings.num_beams, group_size):
        group = slice(offset, offset + group_size)
        scores = logprobs[:, group]
        if chosen:  # lower the scores of tokens that earlier groups have chosen
            earlier = torch.cat([tokens for _, _, tokens in chosen], dim=1)
            counts = F.one_hot(earlier, vocabulary).sum(1, keepdim=True)  # (b, 1, V)
            scores = scores - settings.diversity_penalty * counts
        scores = adjust_scores(scores, beams.tokens[:, group, :length], end, settings)
        scores = (scores + beams.scores[:, group].unsqueeze(2)).flatten(1)
        sums, index = scores.topk(2 * group_size, dim=1)  # the best first
        beam, token = offset + index // vocabulary, index % vocabulary
        normalised = sums.double() / length**settings.length_penalty

        is_end = token == end
        candidates = beams.tokens.take_along_dim(beam[:, :group_size].unsqueeze(2), 1)
        candidates[..., length] = end
        is_candidate = is_end[:, :group_size] & ~done.unsqueeze(1)
        ended.add(prompts, candidates, normalised[:, :group_size].where(is_candidate, -torch.inf))

        continuing = is_end.int().sort(dim=1, stable=True).indices[:, :group_size]
        chosen.append([field.gather(1, continuing) for field in (sums, beam, token)])
        worst = ended.scores[prompts, -1]
        done |= (worst >= normalised[:, 0]) & worst.isfinite()
    return [*(torch.cat(fields, dim=1) for fields in zip(*chosen)), done]
