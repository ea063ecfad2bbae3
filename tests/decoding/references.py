"""Small models, and a plain beam search over one, that decoding is compared with."""

import torch

from decoding import DecodingSettings

END, PAD = 1, 99


def uncached(logits):
    """Return a step function of one that takes whole rows: tokens (R, n) -> logits (R, V)."""
    state = {}

    def step(tokens, rows):
        flat = tokens.flatten(0, 1)
        if rows is not None:
            flat = torch.cat([state["rows"][rows.flatten()], flat], dim=1)
        state["rows"] = flat
        return logits(flat).unflatten(0, tokens.shape[:2])

    return step


class PrefixModel:
    """Computes logits that depend on all tokens of a row and on its prompt."""

    def __init__(self, vocabulary, seed, end=END, ends=1.0):
        generator = torch.Generator().manual_seed(seed)
        self.weight = 2 * torch.randn(40, vocabulary, vocabulary, generator=generator)
        self.weight[:, :, end] += ends
        self.prompt_bias = torch.randn(50, vocabulary, generator=generator)

    def logits(self, tokens):
        """Return logits (R, V) of tokens (R, n). The first token identifies the prompt."""
        positions = torch.arange(tokens.size(1)) % 40
        decay = 0.5 ** torch.arange(tokens.size(1)).flip(0)
        picked = self.weight[positions, tokens % self.weight.size(1)]  # (R, n, V)
        return (picked * decay[:, None]).sum(1) + self.prompt_bias[tokens[:, 0]]

    def step(self):
        return uncached(self.logits)


def reference_beam_search(model, prompt, chosen: DecodingSettings):
    """Search like transformers 4.15.0, for one prompt. Return pairs of tokens and score."""
    size = chosen.num_beams // chosen.num_beam_groups
    first = [(prompt.tolist(), 0.0)] + [(prompt.tolist(), -1e9)] * (size - 1)
    groups = [first] * chosen.num_beam_groups
    ended, done = [], False

    def add(tokens, score):
        normalised = score / len(tokens) ** chosen.length_penalty
        if len(ended) < chosen.num_beams or normalised > min(s for s, _ in ended):
            ended.append((normalised, tokens))
            if len(ended) > chosen.num_beams:
                ended.remove(min(ended, key=lambda pair: pair[0]))

    while not done:
        length = len(groups[0][0][0])
        words, after = [], []
        for beams in groups:
            candidates = []
            logits = model.logits(torch.tensor([tokens for tokens, _ in beams]))
            of_beams = logits.log_softmax(1).tolist()
            for row, ((tokens, score), logprobs) in enumerate(zip(beams, of_beams)):
                for word in words:
                    logprobs[word] -= chosen.diversity_penalty
                adjust(logprobs, tokens, chosen)
                candidates += [(score + p, row, w) for w, p in enumerate(logprobs)]
            candidates = sorted(candidates, reverse=True)[: 2 * size]
            following = []
            for rank, (score, row, token) in enumerate(candidates):
                if token == END:
                    if rank < size and not done:
                        add(beams[row][0], score)
                elif len(following) < size:
                    following.append(([*beams[row][0], token], score))
            if len(ended) == chosen.num_beams and not done:
                best = candidates[0][0] / length**chosen.length_penalty
                done = min(s for s, _ in ended) >= best
            words += [tokens[-1] for tokens, _ in following]
            after.append(following)
        if done:
            break
        groups = after
        if length + 1 == chosen.max_length:
            for tokens, score in (beam for beams in groups for beam in beams):
                add(tokens, score)
            done = True
    best = sorted(ended, key=lambda pair: -pair[0])[: chosen.num_return]
    return [([*t, END] if len(t) < chosen.max_length else t, s) for s, t in best]


def adjust(scores, tokens, chosen):
    """Change the list of the next token's scores as transformers 4.15.0 does."""
    for token in set(tokens):
        sign = 1 if scores[token] < 0 else -1
        scores[token] *= chosen.repetition_penalty**sign
    size = chosen.no_repeat_ngram_size
    begun = tokens[len(tokens) - size + 1 :]
    for i in range(len(tokens) - size + 1 if size else 0):
        if tokens[i : i + size - 1] == begun:  # the n-gram would occur again
            scores[tokens[i + size - 1]] = float("-inf")
    if len(tokens) < chosen.min_length:
        scores[END] = float("-inf")
