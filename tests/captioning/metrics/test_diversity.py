"""Length and diversity against their formulas written out."""

import json

import pytest

from captioning.metrics.diversity import Diversity, Length
from captioning.metrics.evaluator import CaptionSet
from captioning.runtime.errors import UserError

# The Dogs occur twice: neither a capital nor a full stop makes another caption.
PREDICTIONS = {1: "A dog and a dog.", "b": "a  dog and a dog", 3: "a red, red cat", 4: ""}
HUMAN = {1: ["A dog, and it runs."], "b": ["dogs"], 3: ["the red cat", "a Cat"], 4: ["something"]}
CAPTIONS = CaptionSet(PREDICTIONS, HUMAN)


def test_length_counts_what_white_space_separates():
    result = Length().evaluate(CAPTIONS)
    assert result.per_image == {"cap_len": [5, 5, 4, 0]}
    estimate = result.metrics["cap_len"]
    assert estimate.value == 3.5 and estimate.n == 4
    assert 0 < estimate.low < 3.5 < estimate.high <= 5


def test_diversity_is_the_formulas(no_java):
    result = Diversity().evaluate(CAPTIONS)
    sentences = ["a dog and a dog", "a dog and a dog", "a red red cat", ""]
    words = " ".join(sentences).split()
    pairs = {"a dog", "dog and", "and a", "a red", "red red", "red cat"}  # none across captions
    assert {name: estimate.value for name, estimate in result.metrics.items()} == pytest.approx(
        {
            "lex_div": 0.005,
            "ttr": len(set(words)) / len(words),
            "distinct_1": 5 / 14,
            "distinct_2": len(pairs) / 14,
            "distinct_captions": 3 / 4,
            "vocab_use": 5 / 10,  # of: a dog and it runs dogs the red cat something
        }
    )
    assert all(e.low is None and e.high is None and e.n == 4 for e in result.metrics.values())
    assert result.settings == {"tokenizer": "regex (no Java)"}
    assert tuple(result.metrics) == Diversity().names


def test_what_a_captioner_was_trained_on(no_java, tmp_path):
    rows = [
        {"image": "1.jpg", "caption": "a dog, and A DOG"},
        {"image": "1.jpg", "caption": "two zebras"},
        {"image": "2.jpg", "caption": "a red cat"},
        {"image": "3.jpg", "caption": "A red red cat."},
    ]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    evaluator = Diversity(train_captions=str(tmp_path / "train.json"))
    result = evaluator.evaluate(CAPTIONS)
    assert tuple(result.metrics) == evaluator.names
    assert result.metrics["seen_captions"].value == 3 / 4
    assert result.metrics["train_vocab_use"].value == 5 / 7
    assert result.settings["train_captions"] == str(tmp_path / "train.json")


def test_training_captions_that_are_not_there_are_missed_at_once(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        Diversity(train_captions=str(tmp_path / "train.json"))
