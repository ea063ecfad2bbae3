"""Any caption is cleaned up, made into ids and back without a crash, and within its bounds.

Ranges: any text to 60 code points, surrogates and special tokens among them, or to 300 words of a
small vocabulary; 1 to 40 words, 3 to 40 tokens.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines import Vocabulary
from BLIP.tokenizer import CaptionTokenizer
from captioning.data import preprocess_caption
from tests.conftest import SPECIAL_TOKENS, WORDS
from tests.fuzz.examples import fuzzed

KNOWN = [word for word in WORDS.split() if not word.startswith("##")]
SPECIAL = [*SPECIAL_TOKENS, "[DEC]", "[ENC]", "<NULL>", "<START>", "<END>", "<UNK>"]

any_text = st.text(st.characters(), max_size=60)  # surrogates, too
spiced = st.lists(any_text | st.sampled_from([*SPECIAL, *KNOWN]), max_size=5).map(" ".join)
texts = st.one_of(any_text, spiced, st.lists(st.sampled_from(KNOWN), max_size=300).map(" ".join))


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return CaptionTokenizer(str(vocabulary))


@fuzzed(300)
@given(texts, st.integers(1, 40))
def test_cleaned_up_once_is_cleaned_up(text, max_words):
    result = preprocess_caption(text, max_words)
    assert preprocess_caption(result, max_words) == result
    assert len(result.split(" ")) <= max_words
    assert len(result) <= len(text.lower()) and not set(result) & set('.!"()*#:;~')
    assert result == result.strip(" ") and "  " not in result and not result.endswith("\n")


@fuzzed(100)
@given(st.lists(texts, min_size=1, max_size=4), st.integers(3, 40))
def test_word_pieces_of_any_caption(tokenizer, captions, max_length):
    captions = [preprocess_caption(caption) for caption in captions]
    ids, mask = tokenizer.encode(captions, max_length)
    assert ids.shape == mask.shape and 2 <= ids.size(1) <= max_length
    assert mask.sum(1).max() == ids.size(1)
    apart = {tokenizer.start, tokenizer.end, tokenizer.pad}
    for row, real in zip(ids.tolist(), mask.sum(1).tolist()):
        assert row[0] == tokenizer.start and row[real - 1] == tokenizer.end
        assert set(row[real:]) <= {tokenizer.pad}
        assert all(0 <= number < len(tokenizer) for number in row)
        # Nothing that a caption says ends it, or begins another.
        assert not apart & set(row[1 : real - 1])
    for row in ids:
        once = tokenizer.decode(row)
        again, _ = tokenizer.encode([once], 500)
        assert tokenizer.decode(again[0]) == once
    for caption in captions:
        prompt = tokenizer.encode_prompt(caption)
        assert prompt[0] == tokenizer.start and prompt.max() < len(tokenizer)


@fuzzed(100)
@given(st.lists(texts, min_size=1, max_size=6), st.integers(3, 40), st.integers(5, 20))
def test_a_counted_vocabulary(captions, max_length, size):
    captions = [preprocess_caption(caption) for caption in captions]
    try:
        words = Vocabulary.count(captions, size)
    except ValueError as error:
        assert "no word occurs so often" in str(error)  # of captions without a word
        return
    assert 4 < len(words) <= size
    assert Vocabulary(words.words).tokens == words.tokens
    ids, mask = words.encode(captions, max_length)
    assert ids.shape == mask.shape and ids.size(1) <= max_length
    assert ids.min() >= 0 and ids.max() < len(words)
    for row, real in zip(ids.tolist(), mask.sum(1).tolist()):
        assert row[0] == words.start and row[real - 1] == words.end
        assert not {words.start, words.end, words.pad} & set(row[1 : real - 1])
    for row in ids:
        once = words.decode(row)
        assert words.decode(words.encode([once], 500)[0][0]) == once
