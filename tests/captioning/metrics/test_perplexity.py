"""Perplexity against its definition in float64."""

import math

import pytest
import torch
from transformers import GPT2LMHeadModel

from captioning.metrics.base import CaptionSet, Settings, build_evaluators
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.pretrained import load_pretrained

TEXTS = [
    "the cat and the dog",
    "x",
    "a man riding a horse on a beach at sunset",
    "",
    " \n",
    "the the the the the the the the the the the the the the the the the the the the the the",
    "a 😀 !",
    "a long, long caption: " + "the cat " * 30,
]
EMPTY = [3, 4]


def evaluate(folder, texts):
    captions = dict(enumerate(texts))
    [evaluator] = build_evaluators(["perplexity"], Settings(batch_size=3), ppl_model=str(folder))
    return evaluator.evaluate(CaptionSet(captions, {number: ["a"] for number in captions}))


def naive(folder, text):
    model = GPT2LMHeadModel.from_pretrained(str(folder)).double().eval()
    _, tokenizer = load_pretrained("ppl_model", str(folder), "AutoModelForCausalLM")
    end = model.config.vocab_size - 1  # <|endoftext|>
    ids = [end, *tokenizer(text).input_ids][:48]
    total = 0.0
    for position in range(1, len(ids)):
        logits = model(torch.tensor([ids[:position]])).logits[0, -1]
        total -= torch.log_softmax(logits, 0)[ids[position]].item()
    return math.exp(total / (len(ids) - 1))


def test_values_are_those_of_the_definition(gpt2_folder):
    result = evaluate(gpt2_folder, TEXTS)
    each = dict(enumerate(result.per_caption["PPL"]))
    assert [each.pop(number) for number in EMPTY] == [None, None]
    known = [naive(gpt2_folder, TEXTS[number]) for number in each]
    assert [*each.values()] == pytest.approx(known, rel=1e-5)
    assert max(known) > 1.5 * min(known)
    assert result.metrics == {"PPL": mean_estimate([*each.values()])}
    assert result.settings == {"ppl_model": str(gpt2_folder), "ppl_truncated": 1, "ppl_empty": 2}

    result = evaluate(gpt2_folder, ["", " "])
    assert result.skipped == {"PPL": "no caption has a word"} and not result.metrics
    assert result.settings["ppl_empty"] == 2
    assert result.per_caption["PPL"] == [None, None]


def test_missing_weights_are_reported_before():
    [evaluator] = build_evaluators(["perplexity"], ppl_model="nobody/nothing")
    reason = evaluator.unavailable()["PPL"]
    assert reason.startswith("ppl_model: nobody/nothing cannot be loaded") and "\n" not in reason
