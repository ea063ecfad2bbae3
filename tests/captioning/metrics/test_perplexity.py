"""Perplexity against its definition in float64, one caption at a time, without padding."""

import json
import math

import pytest
import torch
from transformers import GPT2LMHeadModel

from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.perplexity import LanguageModel, Perplexity
from captioning.runtime.errors import UserError

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


def evaluate(folder, texts, batch_size=3):
    captions = dict(enumerate(texts))
    evaluator = Perplexity(Settings(batch_size=batch_size), ppl_model=str(folder))
    return evaluator.evaluate(CaptionSet(captions, {number: ["a"] for number in captions}))


def naive(folder, text):
    model = GPT2LMHeadModel.from_pretrained(str(folder)).double().eval()
    tokens = LanguageModel(str(folder))
    (ids,), _ = tokens.encode([text])
    assert ids[0] == model.config.vocab_size - 1  # <|endoftext|>
    total = 0.0
    for position in range(1, len(ids)):
        logits = model(torch.tensor([ids[:position]])).logits[0, -1]
        total -= torch.log_softmax(logits, 0)[ids[position]].item()
    return math.exp(total / (len(ids) - 1))


def test_values_are_those_of_the_definition(gpt2_folder):
    result = evaluate(gpt2_folder, TEXTS)
    expected = [
        None if number in EMPTY else naive(gpt2_folder, text) for number, text in enumerate(TEXTS)
    ]
    each = result.per_image["PPL"]
    assert [number for number, value in enumerate(each) if value is None] == EMPTY
    known = [value for value in expected if value is not None]
    assert [value for value in each if value is not None] == pytest.approx(known, rel=1e-5)
    assert max(known) > 1.5 * min(known)
    estimate = result.metrics["PPL"]
    assert estimate.value == pytest.approx(sum(known) / 6) and estimate.n == 6
    assert estimate.low < estimate.value < estimate.high
    assert result.settings == {"ppl_model": str(gpt2_folder), "ppl_truncated": 1, "ppl_empty": 2}


def test_batches_change_no_value(gpt2_folder):
    values = [evaluate(gpt2_folder, TEXTS[5:], size).per_image["PPL"] for size in (1, 2, 3, 6)]
    for other in values[1:]:
        assert other == pytest.approx(values[0], rel=1e-5)


def test_nothing_but_empty_captions(gpt2_folder):
    result = evaluate(gpt2_folder, ["", " "])
    assert result.skipped == {"PPL": "no caption has a word"} and not result.metrics
    assert result.settings["ppl_empty"] == 2
    assert result.per_image["PPL"] == [None, None]


def test_value_is_that_of_every_version(gpt2_folder):
    """Recorded with transformers 5.23.0; the weights depend on a seed alone."""
    found = evaluate(gpt2_folder, TEXTS[:1]).metrics["PPL"]
    assert found.value == pytest.approx(841.45988, rel=1e-5)


def test_sizes_that_are_none(gpt2_folder, tmp_path):
    for path in gpt2_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    sizes = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "n_embd": "wide"}))
    with pytest.raises(UserError, match="ppl_model: no configuration of this kind"):
        LanguageModel(str(tmp_path))


def test_missing_weights_are_reported_before():
    reasons = Perplexity().unavailable()
    assert "ppl_model: found no config.json of gpt2 here or on the hub: put" in reasons["PPL"]
