"""Beam search against a plain reference implementation, and against transformers 4.15.0."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from decoding import DecodingSettings
from decoding.search import decode
from tests.decoding.references import END, PAD, PrefixModel, reference_beam_search, uncached
from tests.fuzz.examples import fuzzed


@st.composite
def searches(draw):
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    num_beams = groups * draw(st.integers(2 if groups == 1 else 1, 5 if groups == 1 else 2))
    max_length = draw(st.integers(4, 14))
    chosen = DecodingSettings(
        num_beams=num_beams,
        num_return=draw(st.integers(1, num_beams)),
        max_length=max_length,
        min_length=draw(st.integers(0, max_length)),
        length_penalty=draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.5, 3.0])),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 2, 3])),
        num_beam_groups=groups,
        diversity_penalty=draw(st.sampled_from([0.0, 0.3, 2.0])) if groups > 1 else 0.0,
    )
    ends = draw(st.sampled_from([-2.0, 1.0, 4.0]))
    model = PrefixModel(13, draw(st.integers(0, 10**6)), ends=ends)
    prompts = draw(st.lists(st.integers(2, 12), min_size=1, max_size=4))
    return chosen, model, torch.tensor([[p, 2, 3] for p in prompts])


@fuzzed(150)
@given(searches())
def test_batched_search_is_the_plain_search_of_each_prompt(search):
    chosen, model, prompts = search
    decoded = decode(model.step(), prompts, END, PAD, chosen)
    for prompt, tokens, scores in zip(prompts, decoded.token_ids, decoded.scores):
        expected, expected_scores = zip(*reference_beam_search(model, prompt, chosen))
        found = [[token for token in row if token != PAD] for row in tokens.tolist()]
        assert found == list(expected)
        assert scores.tolist() == pytest.approx(expected_scores, rel=1e-4, abs=1e-4)


@pytest.mark.skipif(transformers.__version__ != "4.15.0", reason="needs transformers 4.15.0")
@pytest.mark.parametrize("seed", range(16))
def test_transformers_4_15_gives_the_same_tokens(seed):
    from transformers import BertConfig, BertLMHeadModel

    torch.manual_seed(seed)
    config = BertConfig(30, 16, 1, 2, 32, is_decoder=True, initializer_range=1.0)
    model = BertLMHeadModel(config).eval()
    model.cls.predictions.bias.data[END] += 4.0 * (seed % 3)
    prompts = torch.randint(2, 30, (5, 3))
    chosen = {
        "num_beams": 2 + seed % 4,
        "max_length": 8 + 2 * seed,
        "min_length": seed % 7,
        "length_penalty": [1.0, 0.5, 2.0][seed % 3],
        "repetition_penalty": [1.0, 1.5][seed % 2],
        "no_repeat_ngram_size": [0, 2, 3, 1][seed % 4],
    }
    if seed >= 8:
        chosen.update(num_beams=6, num_beam_groups=[2, 3, 6][seed % 3])
        chosen["diversity_penalty"] = [0.0, 0.5, 3.0, 8.0][seed % 4]
    num_return, special = 1 + seed % 2, {"eos_token_id": END, "pad_token_id": 0}
    expected = model.generate(
        prompts, **chosen, num_return_sequences=num_return, **special, use_cache=False
    )
    step = uncached(lambda rows: model(rows).logits[:, -1])
    chosen = DecodingSettings(**chosen, num_return=num_return)
    decoded = decode(step, prompts, END, 0, chosen)
    assert decoded.token_ids.flatten(0, 1).tolist() == expected.tolist()


def test_a_prompt_without_room_for_a_caption_is_refused():
    settings = DecodingSettings(max_length=3, min_length=1)
    with pytest.raises(ValueError, match="max_length is 3, but the prompt alone is 3 tokens"):
        decode(None, torch.ones(1, 3).long(), END, PAD, settings)


def test_if_every_word_is_banned_there_still_is_a_caption_of_a_bad_score():
    chosen = DecodingSettings(num_beams=2, max_length=7, min_length=7, no_repeat_ngram_size=1)
    model, prompt = PrefixModel(5, 0), torch.tensor([[2, 3]])
    decoded = decode(model.step(), prompt, END, PAD, chosen)
    assert decoded.token_ids[0, 0, :2].tolist() == [2, 3]
    assert {0, 4} <= set(decoded.token_ids[0, 0, 2:].tolist())  # the only others but the end
    assert decoded.scores.item() < -1e6
