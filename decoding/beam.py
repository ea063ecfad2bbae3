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
    the length without the end token ** length_penalty, the prompt's tokens counted.
    """
    beams, max_length = settings.num_beams, settings.max_length
    prompts, start = prompt.shape
    ended = Hypotheses(prompts, beams, max_length, pad, prompt.device)
    live = torch.arange(prompts, device=prompt.device)  # (b,)
    tokens = prompt.new_full((prompts, beams, max_length), pad)
    tokens[..., :start] = prompt.unsqueeze(1)
    scores = torch.full((prompts, beams), NOT_STARTED, device=prompt.device)
    scores[:, 0] = 0

    logits = step(prompt.unsqueeze(1), None).expand(-1, beams, -1)  # (b, k, V)
    rows = live.unsqueeze(1).expand(-1, beams)  # the first step had one row a prompt
    for length in range(start, max_length):
        logprobs = adjust(logits.float().log_softmax(-1), tokens[..., :length], end, settings)
        total = (logprobs + scores.unsqueeze(2)).flatten(1)
        top, index = total.topk(2 * beams, dim=1)
        beam, word = index // logits.size(2), index % logits.size(2)  # (b, 2k)
        normalised = top.double() / length**settings.length_penalty

        ends = word == end
        candidates = take(tokens, beam[:, :beams])
        candidates[..., length] = end
        offered = normalised[:, :beams].masked_fill(~ends[:, :beams], float("-inf"))
        ended.add(live, candidates, offered, length)

        goes_on = ends.int().sort(dim=1, stable=True).indices[:, :beams]
        scores, beam, word = (t.gather(1, goes_on) for t in (top, beam, word))
        tokens = take(tokens, beam)
        tokens[..., length] = word
        alive = ended.scores[live, -1] < normalised[:, 0]  # a free place counts as -inf
        rows = rows.gather(1, beam)[alive]
        live, tokens, scores, word = live[alive], tokens[alive], scores[alive], word[alive]
        if len(live) == 0:
            break
        if length + 1 < max_length:
            logits = step(word.unsqueeze(2), rows)
            rows = torch.arange(rows.numel(), device=rows.device).view_as(rows)

    ended.add(live, tokens, scores.double() / max_length**settings.length_penalty, max_length)
    kept = slice(settings.num_return)
    width = min(int(ended.lengths[:, kept].max()) + 1, max_length)
    return Decoded(ended.tokens[:, kept, :width], ended.scores[:, kept])
