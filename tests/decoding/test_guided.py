"""Guidance against its formula in float64."""

from types import SimpleNamespace

import pytest
import torch

from decoding import DecodingSettings, decode
from decoding.decode import generate_captions
from decoding.guided import GuidedStep
from tests.decoding.references import END, PAD, PrefixModel, reference_beam_search, strip, uncached

BANNED = 0
SCALES = (2.5, 0.3)


class Guided:
    """Two prefix models: `conditional` sees the image, `unconditional` the null image.

    Both exclude a word, as captioners do.
    """

    def __init__(self, chosen, seed):
        self.conditional, self.unconditional = PrefixModel(8, seed), PrefixModel(8, seed + 100)
        self.chosen = chosen

    def logits(self, tokens):
        """Return the formula's logits, float64 (R, V), of tokens (R, n)."""
        conditional, unconditional = (
            model.logits(tokens)[:, 1:].double().log_softmax(-1)
            for model in (self.conditional, self.unconditional)
        )
        logits = unconditional + self.chosen.guidance_scale * (conditional - unconditional)
        return torch.nn.functional.pad(logits, (1, 0), value=float("-inf"))

    def step(self):
        """Return the step function of both. A row keeps its image, as it does a cache."""
        sees_image = torch.empty(0)

        def logits(rows):
            both = self.conditional.logits(rows), self.unconditional.logits(rows)
            found = torch.where(sees_image[:, None], *both)
            return found.index_fill(1, torch.tensor(BANNED), float("-inf"))

        def step(tokens, rows):
            nonlocal sees_image
            if rows is None:
                count = tokens.size(0) * tokens.size(1)
                sees_image = torch.arange(count) < count // 2
            else:
                sees_image = sees_image[rows.flatten()]
            return plain(tokens, rows)

        plain = uncached(logits)
        return GuidedStep(step, self.chosen.guidance_scale)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("search", [{"num_beams": 4}, {"num_beams": 4, "num_beam_groups": 2}])
def test_beams_are_those_of_a_plain_search_over_the_formulas_logits(scale, seed, search):
    """Prompts end at different steps."""
    chosen = DecodingSettings(
        guidance_scale=scale, **search, num_return=2, max_length=9, min_length=3
    )
    model = Guided(chosen, seed)
    prompts = torch.tensor([[2, 3], [3, 4], [6, 5], [7, 2]])
    decoded = decode(model.step(), prompts, END, PAD, chosen)
    for prompt, rows, scores in zip(prompts, decoded.token_ids, decoded.scores):
        expected = reference_beam_search(model, prompt, chosen)
        assert [strip(row) for row in rows] == [tokens for tokens, _ in expected]
        expected_scores = [score for _, score in expected]
        assert scores.tolist() == pytest.approx(expected_scores, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("scale", SCALES)
def test_words_are_sampled_as_often_as_the_renormalised_formula_says(scale):
    whole = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": 3, "temperature": 1.5}
    chosen = DecodingSettings(guidance_scale=scale, sample=True, num_return=20_000, **whole)
    model, prompt = Guided(chosen, 1), torch.tensor([[2, 3]])
    words = decode(model.step(), prompt, END, PAD, chosen).token_ids[0, :, 2]
    expected = (model.logits(prompt) / 1.5).softmax(1)[0]
    frequency = torch.bincount(words, minlength=8).double() / 20_000
    torch.testing.assert_close(frequency, expected, atol=0.015, rtol=0)
    assert expected[BANNED] == 0


def test_own_scores_are_the_captioners_log_likelihoods_without_guidance():
    settings = {"num_beams": 2, "num_return": 2, "min_length": 0, "max_length": 7}
    chosen = DecodingSettings(guidance_scale=2.0, length_penalty=0.7, **settings)
    model = Guided(chosen, 5)

    def log_likelihood(row):
        tokens, found = strip(row), torch.zeros(len(row) - 2)
        for n in range(2, len(tokens)):
            logits = model.conditional.logits(torch.tensor([tokens[:n]]))[0]
            found[n - 2] = logits.log_softmax(0)[tokens[n]]
        return found

    def log_likelihoods(ids):
        return torch.stack([torch.stack([log_likelihood(row) for row in rows]) for rows in ids])

    words, prompt = SimpleNamespace(end=END, pad=PAD), torch.tensor([2, 3])
    found = generate_captions(
        model.step(), prompt, torch.zeros(3), words, chosen, str, log_likelihoods
    )
    for row, score in zip(found.token_ids.flatten(0, 1), found.own_scores.flatten()):
        length = len(strip(row)) - (strip(row)[-1] == END)
        expected = log_likelihood(row).sum().item() / length**0.7
        assert score.item() == pytest.approx(expected, abs=1e-5)
    assert not torch.allclose(found.own_scores, found.scores)
