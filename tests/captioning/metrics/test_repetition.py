"""Repetition on captions that were counted by hand."""

import pytest

from captioning.metrics.evaluator import build_evaluators
from captioning.metrics.repetition import loops, repeated
from captioning.metrics.scoring import score

pytestmark = pytest.mark.usefixtures("no_java")


@pytest.mark.parametrize(
    ("caption", "shares"),
    [
        ("a cat on a mat", (0, 0, 0)),
        ("a cat and a cat", (25, 0, 0)),  # of a cat, cat and, and a, a cat
        ("the end the end the end", (60, 50, 100 / 3)),
        ("one two", (0, None, None)),
        ("one", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_repeated_ngrams(caption, shares):
    assert [repeated(caption.split(), n) for n in (2, 3, 4)] == pytest.approx(shares)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a very very big dog", False),
        ("a very very very big dog", True),
        ("a dog on a table on a table", True),
        ("on a table a dog on a table", False),  # twice, and not running
        ("a dog a dog", True),
        ("a dog and a dog and", True),
        ("a dog and a dog and a cat", True),
        ("a man with a hat and a man with a coat", False),
        ("x a b c d e a b c d e", True),
        ("", False),
        ("dog dog", False),
    ],
)
def test_loops(caption, expected):
    assert loops(caption.split()) is expected


CAPTIONS = {1: "The end. The end! The end?", 2: "one, two", 3: "", 4: "a cat and a cat"}


def test_means_over_captions_that_have_ngrams():
    references = {image_id: ["a cat"] for image_id in CAPTIONS}
    scores = score(CAPTIONS, references, build_evaluators(["repetition"]))
    values = {name: estimate.value for name, estimate in scores.metrics.items()}
    expected = {"rep_2": 85 / 3, "rep_3": 25, "rep_4": 50 / 3, "loops": 25}
    assert values == pytest.approx(expected)
    assert scores.metrics["rep_2"].low == 0 and scores.metrics["rep_2"].high == 60
    first, second, *_ = zip(*scores.per_image.values())
    assert first == pytest.approx((60, 50, 100 / 3, 100)) and second == (0, None, None, 0)
