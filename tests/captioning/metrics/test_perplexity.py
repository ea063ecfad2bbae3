"""Perplexity against its definition in float64."""

import pytest
import torch
from transformers import GPT2LMHeadModel

from captioning.metrics.base import Settings
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.pretrained import load_pretrained
from tests.captioning.metrics.conftest import scored

TEXTS = [
    "the cat and the dog",
    "x",
    "",
    " \n",
    "the the the the the the the the the the the the the the the the the the the the the the",
    "a 😀 !",
    "a long, long caption: " + "the cat " * 30,
]


def test_values_are_those_of_the_definition(gpt2_folder):
    model = GPT2LMHeadModel.from_pretrained(str(gpt2_folder)).double().eval()
    _, tokenizer = load_pretrained("ppl_model", str(gpt2_folder), "AutoModelForCausalLM")

    def naive(text):
        end = model.config.vocab_size - 1  # <|endoftext|>
        ids = [end, *tokenizer(text).input_ids][:48]
        logits = [model(torch.tensor([ids[:n]])).logits[0, -1] for n in range(1, len(ids))]
        losses = [-torch.log_softmax(each, 0)[i] for each, i in zip(logits, ids[1:])]
        return torch.stack(losses).mean().exp().item()

    options = {"settings": Settings(batch_size=3), "ppl_model": str(gpt2_folder)}
    result = scored("perplexity", dict(enumerate(TEXTS)), **options)
    values = result.per_caption["PPL"]
    assert [values.pop(2), values.pop(2)] == [None, None]
    known = [naive(text) for text in TEXTS if text.strip()]
    assert values == pytest.approx(known, rel=1e-5) and max(known) > 1.5 * min(known)
    assert result.metrics == {"PPL": mean_estimate(values)}
    assert result.settings == {"ppl_model": str(gpt2_folder), "ppl_truncated": 1, "ppl_empty": 2}
    result = scored("perplexity", {1: "", 2: " "}, **options)
    assert result.skipped == {"PPL": "no caption has a word"} and not result.metrics
    assert result.settings["ppl_empty"] == 2
