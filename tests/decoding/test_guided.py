"""Guidance and visual contrastive decoding against their formulas in float64."""

import math
from types import SimpleNamespace

import pytest
import torch

from decoding import DecodingSettings, decode
from decoding.decode import generate_captions
from decoding.guided import IMPLAUSIBLE, GuidedStep, add_noise, second_stream
from tests.decoding.references import END, PAD, PrefixModel, reference_beam_search, strip, uncached

BANNED = 0
GUIDED = {
    "guidance": {"guidance_scale": 2.5},
    "less than none": {"guidance_scale": 0.3},
    "contrast": {"contrastive_alpha": 1.5, "contrastive_beta": 0.2},
}


class TwoStreams:
    """Two prefix models: `conditional` sees the image, `unconditional` another one.

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
        if self.chosen.contrastive_alpha:
            alpha, beta = self.chosen.contrastive_alpha, self.chosen.contrastive_beta
            logits = (1 + alpha) * conditional - alpha * unconditional
            implausible = conditional.exp() < beta * conditional.exp().amax(1, keepdim=True)
            logits[implausible] = conditional[implausible] + IMPLAUSIBLE
        else:
            logits = unconditional + self.chosen.guidance_scale * (conditional - unconditional)
        return torch.nn.functional.pad(logits, (1, 0), value=float("-inf"))

    def step(self):
        """Return the step function of both streams. A row keeps its stream, as it does a cache."""
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
        return GuidedStep(step, self.chosen)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", GUIDED)
@pytest.mark.parametrize("search", [{"num_beams": 4}, {"num_beams": 4, "num_beam_groups": 2}])
def test_beams_are_those_of_a_plain_search_over_the_formulas_logits(kind, seed, search):
    """Prompts end at different steps."""
    chosen = DecodingSettings(**GUIDED[kind], **search, num_return=2, max_length=9, min_length=3)
    model = TwoStreams(chosen, seed)
    prompts = torch.tensor([[2, 3], [3, 4], [6, 5], [7, 2]])
    decoded = decode(model.step(), prompts, END, PAD, chosen)
    for prompt, rows, scores in zip(prompts, decoded.token_ids, decoded.scores):
        expected = reference_beam_search(model, prompt, chosen)
        assert [strip(row) for row in rows] == [tokens for tokens, _ in expected]
        expected_scores = [score for _, score in expected]
        assert scores.tolist() == pytest.approx(expected_scores, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", GUIDED)
def test_words_are_sampled_as_often_as_the_renormalised_formula_says(kind):
    whole = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": 3, "temperature": 1.5}
    chosen = DecodingSettings(**GUIDED[kind], sample=True, num_return=20_000, **whole)
    model, prompt = TwoStreams(chosen, 1), torch.tensor([[2, 3]])
    words = decode(model.step(), prompt, END, PAD, chosen).token_ids[0, :, 2]
    expected = (model.logits(prompt) / 1.5).softmax(1)[0]
    frequency = torch.bincount(words, minlength=8).double() / 20_000
    torch.testing.assert_close(frequency, expected, atol=0.015, rtol=0)
    assert expected[BANNED] == 0


def test_contrast_takes_the_likeliest_word_where_min_length_bans_all_that_are_plausible():
    conditional = torch.tensor([-math.inf, 9.0, 2.0, 3.0])  # END is word 1
    unconditional = torch.tensor([-math.inf, 0.0, -9.0, 9.0])
    logits = torch.stack([conditional, unconditional])[:, None]
    chosen = DecodingSettings(contrastive_alpha=1.0, num_beams=1, max_length=2, min_length=2)
    step = GuidedStep(lambda tokens, rows: logits, chosen)
    assert decode(step, torch.tensor([[2]]), END, PAD, chosen).token_ids.tolist() == [[[2, 3]]]


@pytest.mark.parametrize("noise", [0, 1, 500, 999])
def test_an_image_keeps_the_share_of_the_schedule_and_all_get_the_same_noise(noise):
    image = torch.randn(3, 3, 5, 5, dtype=torch.float64)
    kept = 1.0
    for step in range(noise + 1):
        x = -6 + 12 * step / 999
        kept *= 1 - ((5e-3 - 1e-5) / (1 + math.exp(-x)) + 1e-5)
    chosen = DecodingSettings(contrastive_alpha=1.0, contrastive_noise=noise)
    found = add_noise(image, chosen)
    added = (found - math.sqrt(kept) * image) / math.sqrt(1 - kept)
    torch.testing.assert_close(added[1:], added[:1].expand(2, -1, -1, -1))
    assert abs(added[0].mean()) < 0.5 and 0.7 < added[0].std() < 1.3
    torch.testing.assert_close(found[1:], add_noise(image[1:], chosen))


def test_own_scores_are_the_captioners_log_likelihoods_without_guidance():
    settings = {"num_beams": 2, "num_return": 2, "min_length": 0, "max_length": 7}
    chosen = DecodingSettings(guidance_scale=2.0, length_penalty=0.7, **settings)
    model = TwoStreams(chosen, 5)

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


def test_contrast_with_features_alone_is_refused():
    with pytest.raises(ValueError, match=r"contrastive_alpha is 1\.0, which needs the images"):
        second_stream(None, torch.zeros(2, 3), DecodingSettings(contrastive_alpha=1.0))
