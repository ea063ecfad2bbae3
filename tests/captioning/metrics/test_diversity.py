"""Length and diversity against their formulas written out."""

import pytest

from captioning.metrics.diversity import Diversity
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.length import Length

# The Dogs occur twice: neither a capital nor a full stop makes another caption.
PREDICTIONS = {1: "A dog and a dog.", "b": "a  dog and a dog", 3: "a red, red cat", 4: ""}
CAPTIONS = CaptionSet(PREDICTIONS, {image_id: ["something"] for image_id in PREDICTIONS})


def test_length_counts_what_white_space_separates():
    result = Length(Settings()).evaluate(CAPTIONS)
    assert result.per_image == {"cap_len": [5, 5, 4, 0]}
    estimate = result.metrics["cap_len"]
    assert estimate.value == 3.5 and estimate.n == 4
    assert 0 < estimate.low < 3.5 < estimate.high <= 5


def test_diversity_is_the_formulas(no_java):
    result = Diversity(Settings()).evaluate(CAPTIONS)
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
        }
    )
    assert all(e.low is None and e.high is None and e.n == 4 for e in result.metrics.values())
    assert result.settings == {"tokenizer": "regex (no Java)"}
    assert tuple(result.metrics) == Diversity.names
