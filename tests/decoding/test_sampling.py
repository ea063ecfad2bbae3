"""Greedy decoding and sampling against plain loops, distributions and transformers."""

import importlib

import pytest
import torch
import transformers

from decoding import DecodingSettings, decode
from decoding.sampling import adjust_scores, draw_tokens, warp_scores
from tests.decoding.references import GuidedModel, markov

END, PAD = 1, 0


@pytest.mark.parametrize("seed", range(8))
def test_greedy_takes_the_best_token_until_the_end(seed):
    table, step = markov(seed=seed)
    chosen = DecodingSettings(num_beams=1, max_length=12, min_length=5, repetition_penalty=1.3)
    prompts = torch.tensor([[2, 3], [3, 4], [6, 5]])
    decoded = decode(step, prompts, END, PAD, chosen)
    for prompt, row in zip(prompts.tolist(), decoded.token_ids[:, 0].tolist()):
        expected = list(prompt)
        while len(expected) < 12 and expected[-1] != END:
            logits = table[expected[-1]].clone()
            for token in set(expected):
                logits[token] *= 1.3 if logits[token] < 0 else 1 / 1.3
            if len(expected) < 5:
                logits[END] = float("-inf")
            expected.append(int(logits.argmax()))
        assert row == expected + [PAD] * (len(row) - len(expected))


def test_scores_are_mean_log_probabilities():
    table, step = markov(seed=3)
    chosen = DecodingSettings(sample=True, num_return=5, max_length=10, min_length=0)
    decoded = decode(step, torch.tensor([[2], [5]]), END, PAD, chosen)
    for rows, scores in zip(decoded.token_ids.tolist(), decoded.scores.tolist()):
        for row, score in zip(rows, scores):
            length = row.index(END) if END in row else len(row)
            logprobs = table.log_softmax(1)
            steps = range(1, min(length + 1, len(row)))
            total = sum(logprobs[row[i - 1], row[i]].item() for i in steps)
            assert score == pytest.approx(total / length, abs=1e-5)
            assert set(row[length + 1 :]) <= {PAD}


OLD = transformers.__version__ == "4.15.0"
library = importlib.import_module(
    "transformers.generation_logits_process" if OLD else "transformers.generation"
)
WARPERS = {"temperature": "Temperature", "top_k": "TopK", "top_p": "TopP"}
TOP_K = ({}, {"top_k": 1}, {"top_k": 3}, {"top_k": 50})
TOP_P = ({}, {"top_p": 0.3}, {"top_p": 0.9})
CASES = [{"temperature": 0.7, **k, **p} for k in TOP_K for p in TOP_P]


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_warping_equals_that_of_transformers(settings):
    scores = 3 * torch.randn(2, 40, 60)
    expected = scores.flatten(0, 1)
    for name, warper in WARPERS.items():
        if name in settings:
            expected = getattr(library, f"{warper}LogitsWarper")(settings[name])(None, expected)
    chosen = DecodingSettings(sample=True, **{"top_k": 0, "top_p": 1.0, **settings})
    torch.testing.assert_close(warp_scores(scores, chosen).flatten(0, 1), expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_repeats_are_banned_as_in_transformers(size):
    banned = library.NoRepeatNGramLogitsProcessor(size)
    torch.manual_seed(0)
    chosen = DecodingSettings(no_repeat_ngram_size=size, min_length=0)
    for length in (1, 2, 3, 12):
        tokens, scores = torch.randint(4, (3, 5, length)), torch.randn(3, 5, 6)
        found = adjust_scores(scores, tokens, END, chosen).flatten(0, 1)
        torch.testing.assert_close(found, banned(tokens.flatten(0, 1), scores.flatten(0, 1)))


def test_tokens_are_drawn_as_often_as_their_probability_says():
    p = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    found = draw_tokens(p.expand(20000, -1), torch.rand(20000).double()).bincount(minlength=6)
    torch.testing.assert_close(found / 20000, p, atol=0.015, rtol=0)
    assert not found[p == 0].any()
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw_tokens(p.expand(2, -1), ends).tolist() == [1, 4]


@pytest.mark.parametrize("scale", [2.5, 0.3])
def test_guided_words_are_sampled_as_often_as_the_formula_says(scale):
    whole = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": 3, "temperature": 1.5}
    chosen = DecodingSettings(guidance_scale=scale, sample=True, num_return=20_000, **whole)
    model, prompt = GuidedModel(8, 1, scale), torch.tensor([[2, 3]])
    words = decode(model.step(), prompt, END, PAD, chosen).token_ids[0, :, 2]
    expected = (model.logits(prompt) / 1.5).softmax(1)[0]
    frequency = torch.bincount(words, minlength=8).double() / 20_000
    torch.testing.assert_close(frequency, expected, atol=0.015, rtol=0)


def test_samples_depend_on_their_own_seed_or_on_torchs():
    (_, step), prompts = markov(), torch.tensor([[3], [4], [5]])
    settings = {"sample": True, "num_return": 4, "max_length": 9, "min_length": 0, "top_p": 1.0}

    def samples(rows=slice(None), seeds=None):
        return decode(step, prompts[rows], END, PAD, DecodingSettings(**settings, seeds=seeds))

    state, whole = torch.random.get_rng_state(), samples(seeds=(7, 8, 9))
    for row in range(3):
        alone = samples([row], (7 + row,))
        assert torch.equal(whole.token_ids[row, :, : alone.token_ids.size(2)], alone.token_ids[0])
        assert torch.equal(whole.scores[row], alone.scores[0])
    assert not torch.equal(samples(seeds=(1, 2, 3)).scores, whole.scores)
    assert torch.equal(torch.random.get_rng_state(), state)
    first, second = samples(), samples()
    assert not torch.equal(first.scores, second.scores)
    torch.random.set_rng_state(state)
    assert torch.equal(samples().scores, first.scores)


def test_logits_that_are_not_finite_give_scores_that_are_not():
    def step(tokens, rows):
        return torch.full((1, tokens.size(1), 5), float("nan"))

    settings = DecodingSettings(sample=True, num_return=2, max_length=4, min_length=0)
    decoded = decode(step, torch.tensor([[1]]), end=4, pad=0, settings=settings)
    assert decoded.scores.isnan().all()
