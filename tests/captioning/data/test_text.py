import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioning.data import preprocess_caption

TABLE = [
    ("A cat.", "a cat"),
    ("  Two DOGS  ", "two dogs"),
    ('He said: "Stop!"', "he said stop"),
    ("a (small) dog #1 * ; ~x", "a small dog 1 x"),
    ("black-and-white, isn't it?", "black-and-white, isn't it?"),
    ("a.b", "a b"),
    ("A dog.\n", "a dog"),
    ("a dog\n", "a dog"),
    ("a\t\tdog", "a dog"),
    ("a\tdog", "a\tdog"),  # a lone tab is not a run: BLIP leaves it
    ("...", ""),
    ("", ""),
    ("ÉTÉ", "été"),
]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_known_captions(text, expected):
    assert preprocess_caption(text) == expected


def test_words_above_the_limit_are_cut():
    assert preprocess_caption(" ".join("abcdefgh"), max_words=3) == "a b c"
    assert preprocess_caption("w " * 40).split() == ["w"] * 30


def test_exactly_the_limit_stays():
    assert preprocess_caption("a b c.", max_words=3) == "a b c"


@given(st.lists(st.from_regex(r"[a-z,'-]+", fullmatch=True), min_size=1, max_size=40))
def test_clean_words_are_kept_in_order(words):
    assert preprocess_caption("  ".join(words)).split(" ") == words[:30]
