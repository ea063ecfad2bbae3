"""Greedy decoding and sampling against a plain loop, distributions and transformers."""

import importlib
from itertools import product

import pytest
import torch
import transformers

from decoding import DecodingSettings
from decoding.sampling import draw_tokens, warp_scores
from decoding.search import decode
from tests.decoding.references import END, PrefixModel, adjust, uncached

PAD = 0


@pytest.mark.parametrize("seed", range(6))
def test_greedy_takes_the_best_token_and_scores_are_mean_log_probabilities(seed):
    model = PrefixModel(7, seed)
    chosen = DecodingSettings(num_beams=1, max_length=12, min_length=5, repetition_penalty=1.3)
    prompts = torch.tensor([[2, 3], [3, 4], [6, 5]])
    token_ids, scores = decode(model.step(), prompts, END, PAD, chosen)
    for prompt, row, score in zip(prompts.tolist(), token_ids[:, 0].tolist(), scores[:, 0]):
        expected, total = list(prompt), 0.0
        while len(expected) < 12 and expected[-1] != END:
            logits = model.logits(torch.tensor([expected]))[0]
            adjusted = logits.tolist()
            adjust(adjusted, expected, chosen)
            expected.append(adjusted.index(max(adjusted)))
            total += logits.log_softmax(0)[expected[-1]].item()
        assert row == expected + [PAD] * (len(row) - len(expected))
        length = len(expected) - (expected[-1] == END)
        assert score.item() == pytest.approx(total / length, abs=1e-5)


OLD = transformers.__version__ == "4.15.0"
library = importlib.import_module(
    "transformers.generation_logits_process" if OLD else "transformers.generation"
)


@pytest.mark.parametrize(("top_k", "top_p"), [*product([0, 1, 3, 50], [0.3, 0.9, 1.0])])
def test_warping_equals_that_of_transformers(top_k, top_p):
    scores = 3 * torch.randn(80, 60)
    expected = library.TemperatureLogitsWarper(0.7)(None, scores)
    if top_k:
        expected = library.TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = library.TopPLogitsWarper(top_p)(None, expected)
    chosen = DecodingSettings(sample=True, temperature=0.7, top_k=top_k, top_p=top_p)
    torch.testing.assert_close(warp_scores(scores, chosen), expected)


def test_a_word_of_probability_0_is_never_drawn():
    p = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw_tokens(p.expand(2, -1), ends).tolist() == [1, 4]
    uniform = torch.rand(5000).double()
    assert set(draw_tokens(p.expand(5000, -1), uniform).tolist()) == {1, 3, 4}


def test_samples_depend_on_their_own_seed_or_on_torchs():
    model, prompts = PrefixModel(7, 0), torch.tensor([[3], [4], [5]])
    settings = {"sample": True, "num_return": 4, "max_length": 9, "min_length": 0, "top_p": 1.0}

    def samples(rows=slice(None), seeds=None):
        chosen = DecodingSettings(**settings, seeds=seeds)
        return decode(model.step(), prompts[rows], END, PAD, chosen)

    state, whole = torch.random.get_rng_state(), samples(seeds=(7, 8, 9))
    for row in range(3):
        alone = samples([row], (7 + row,))
        assert torch.equal(whole.token_ids[row, :, : alone.token_ids.size(2)], alone.token_ids[0])
        assert torch.equal(whole.scores[row], alone.scores[0])
    assert not torch.equal(samples(seeds=(1, 2, 3)).scores, whole.scores)
    assert torch.equal(torch.random.get_rng_state(), state)
    first = samples().scores
    assert not torch.equal(samples().scores, first)
    torch.random.set_rng_state(state)
    assert torch.equal(samples().scores, first)


def test_guided_samples_are_those_of_the_formula():
    image, null, scale = PrefixModel(7, 0), PrefixModel(7, 1), 2.5

    def of_both(rows):
        seeing, blind = rows.chunk(2)
        return torch.cat([image.logits(seeing), null.logits(blind)])

    def of_formula(rows):
        p, q = (model.logits(rows).log_softmax(1) for model in (image, null))
        return q + scale * (p - q)

    settings = {"sample": True, "num_return": 3, "max_length": 9, "seeds": (7, 8)}
    prompts = torch.tensor([[3], [4]])
    guided = DecodingSettings(**settings, guidance_scale=scale)
    found = decode(uncached(of_both), prompts, END, PAD, guided).token_ids
    plain = decode(uncached(of_formula), prompts, END, PAD, DecodingSettings(**settings))
    assert torch.equal(found, plain.token_ids)
    alone = decode(image.step(), prompts, END, PAD, DecodingSettings(**settings))
    assert not torch.equal(found, alone.token_ids)


def test_logits_that_are_not_finite_give_scores_that_are_not():
    settings = DecodingSettings(sample=True, num_return=2, max_length=4, min_length=0)
    step = lambda tokens, rows: torch.full((1, tokens.size(1), 5), float("nan"))  # noqa: E731
    assert decode(step, torch.tensor([[1]]), 4, PAD, settings).scores.isnan().all()
