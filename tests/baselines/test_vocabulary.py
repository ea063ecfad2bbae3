"""Words to ids and back: counting, cutting, what is unknown."""

import pytest
import torch

from baselines import Vocabulary
from baselines.vocabulary import split_words

CAPTIONS = ["a dog runs", "a dog's ball", "A man, a plan", "a dog sits"]


def test_words_of_a_text():
    assert split_words("A man's well-lit café, (2 dogs)!") == [
        "a",
        "man's",
        "well-lit",
        "café",
        "2",
        "dogs",
    ]
    assert split_words("- ' ...") == []
    marked = "कुत्ता दौड़ता है หมาวิ่ง cafe\u0301"  # vowel signs and accents of their own
    assert split_words(marked) == marked.split()


def test_the_most_frequent_words_are_kept_in_a_fixed_order():
    assert Vocabulary.count(CAPTIONS).words == [
        *("a", "dog", "ball", "dog's", "man", "plan", "runs", "sits"),
    ]
    assert Vocabulary.count(CAPTIONS, size=7).words == ["a", "dog", "ball"]
    assert Vocabulary.count(CAPTIONS, min_count=2).words == ["a", "dog"]
    shuffled = Vocabulary.count(CAPTIONS[::-1])
    assert shuffled.words == Vocabulary.count(CAPTIONS).words


def test_a_prompt_is_always_known():
    words = Vocabulary.count(CAPTIONS, size=8, prompt="a picture of ").words
    assert words == ["a", "picture", "of", "dog"]


def test_ids_and_mask():
    vocabulary = Vocabulary(["a", "dog", "runs"])
    assert vocabulary.tokens[:4] == ["<NULL>", "<START>", "<END>", "<UNK>"]
    ids, mask = vocabulary.encode(["A dog runs", "a zebra", ""], 20)
    assert ids.tolist() == [[1, 4, 5, 6, 2], [1, 4, 3, 2, 0], [1, 2, 0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert ids.dtype == mask.dtype == torch.int64


def test_a_cut_caption_still_ends():
    ids, _ = Vocabulary(["a", "dog", "runs"]).encode(["a dog runs", "a"], 4)
    assert ids.tolist() == [[1, 4, 5, 2], [1, 4, 2, 0]]


def test_decoding_leaves_special_tokens_out():
    vocabulary = Vocabulary(["a", "dog", "runs"])
    assert vocabulary.decode(torch.tensor([1, 4, 5, 3, 6, 2, 0])) == "a dog runs"
    assert vocabulary.encode_prompt("a dog ").tolist() == [1, 4, 5]
    assert vocabulary.encode_prompt("").tolist() == [1]


def test_the_words_make_the_same_vocabulary():
    first = Vocabulary.count(CAPTIONS)
    again = Vocabulary(first.words)
    assert len(again) == len(first) == 12
    assert torch.equal(again.encode(CAPTIONS, 9)[0], first.encode(CAPTIONS, 9)[0])


def test_what_cannot_be_a_vocabulary():
    with pytest.raises(ValueError, match="'a' occurs twice"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(ValueError, match="vocabulary_size is 6; it must be 7 or more"):
        Vocabulary.count(CAPTIONS, size=6, prompt="of two")
    with pytest.raises(ValueError, match="min_word_count is 1000; no word occurs so often"):
        Vocabulary.count(CAPTIONS, min_count=1000)
