"""Detail by part of speech, on captions that were counted by hand."""

import sys

import pytest

from captioning.metrics.detail import Detail, count
from captioning.metrics.evaluator import build_evaluators
from captioning.metrics.scoring import score

pytest.importorskip("textblob", reason="detail needs TextBlob")


@pytest.mark.parametrize(
    ("caption", "expected"),  # nouns, adjectives, numbers, relations
    [
        ("A small dog and two cats on a red sofa.", (3, 2, 1, 1)),
        ("Three men in blue shirts next to a bus", (3, 1, 1, 2)),
        ("a woman standing in front  of a large window", (2, 1, 0, 1)),
        ("a cup on top of a table near the sea", (3, 0, 0, 2)),
        ("a group of people walking to the beach", (3, 0, 0, 1)),  # "of" relates nothing
        ("a boy trying to swim while the sun is shining", (2, 0, 0, 0)),
        ("a girl reaching up for a kite", (2, 0, 0, 1)),
        ("a man looking out of a car", (2, 0, 0, 1)),
        ("a dog with a ball in its mouth", (3, 0, 0, 2)),
        ("12 birds", (1, 0, 1, 0)),
        ("a dog jumps", (2, 0, 0, 0)),  # a verb that the tagger does not know as one
        ("", (0, 0, 0, 0)),
        ("...", (0, 0, 0, 0)),
    ],
)
def test_counted_by_hand(caption, expected):
    found = count(caption)
    assert tuple(found[name] for name in Detail().names) == expected


def test_means_over_captions():
    captions = {1: "A red ball and a kite.", 2: "two dogs in the snow", 3: ""}
    scores = score(captions, {i: ["a"] for i in captions}, build_evaluators(["detail"]))
    values = {name: estimate.value for name, estimate in scores.metrics.items()}
    expected = {"nouns": 4 / 3, "adjectives": 1 / 3, "numbers": 1 / 3, "relations": 1 / 3}
    assert values == pytest.approx(expected)
    assert scores.metrics["nouns"].low == 0 and scores.metrics["nouns"].high == 2
    assert [values[1] for values in scores.per_image.values()] == [2, 0, 1, 1]


def test_without_textblob_it_is_said_before(monkeypatch):
    [evaluator] = build_evaluators(["detail"])
    assert evaluator.unavailable() == {}
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    reasons = evaluator.unavailable()
    assert set(reasons) == set(evaluator.names)
    assert reasons["nouns"] == "detail needs TextBlob: pip install textblob"
