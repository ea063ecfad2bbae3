"""Tokens of CLIP and GPT-2 against OpenAI's rules and transformers."""

import json
import unicodedata

import pytest
import regex
from tokenizers import Tokenizer, models, processors

from captioning.metrics.model_files import Bpe, find_model
from captioning.runtime.errors import UserError

TEXTS = [
    "",
    "a photo of the cat and the dog's ball",
    "The CAT, 2 dogs... it's   12:30!?",
    "\tcafé naïve \u2014 ни 中文 😀\n",
    "I'll don't they're 's",
]


@pytest.fixture
def files(clip_folder):
    return find_model("clip_model", str(clip_folder))


def merged(letters, merges):
    """Byte pair encoding as Sennrich et al. (2016) state it: the earliest merge first."""
    while True:
        pairs = [pair for pair in zip(letters, letters[1:]) if pair in merges]
        if not pairs:
            return letters
        first = min(pairs, key=merges.index)
        at = list(zip(letters, letters[1:])).index(first)
        letters = [*letters[:at], "".join(first), *letters[at + 2 :]]


def openai_clip(text, vocabulary, merges, alphabet):
    """CLIP's SimpleTokenizer, letter by letter, on text that needs no repair."""
    text = " ".join(unicodedata.normalize("NFC", text).split()).lower()
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    ids = []
    for word in regex.findall(pattern, text):
        letters = [alphabet[byte] for byte in word.encode()]
        letters[-1] += "</w>"
        ids += [vocabulary[token] for token in merged(letters, merges)]
    return ids


def test_clip_tokens_are_those_of_openai(files):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet.update({byte: chr(256 + number) for number, byte in enumerate(others)})
    vocabulary = json.loads(files.vocabulary.read_text())
    merges = [tuple(line.split()) for line in files.merges.read_text().splitlines()[1:]]
    expected = [openai_clip(text, vocabulary, merges, alphabet) for text in TEXTS]
    assert len(expected[1]) < len(TEXTS[1]) / 1.5  # merges are applied
    ours = Bpe(files, clip=True)
    assert ours.encode(TEXTS) == expected
    assert ours.encode(["a \ud83d cat"]) == ours.encode(["a ? cat"])  # no Unicode


def test_gpt2_tokens_are_those_of_transformers(gpt2_folder):
    from transformers import GPT2TokenizerFast

    theirs = GPT2TokenizerFast(*(str(gpt2_folder / name) for name in ("vocab.json", "merges.txt")))
    ours = Bpe(find_model("ppl_model", str(gpt2_folder)), clip=False)
    assert ours.encode(TEXTS) == [theirs(text)["input_ids"] for text in TEXTS]


def test_the_whole_tokenizer_in_one_file(files, tmp_path):
    """With special tokens and truncation of its own, as transformers saves it."""
    names, end = (str(files.vocabulary), str(files.merges)), "<|endoftext|>"
    whole = Tokenizer(models.BPE.from_file(*names, end_of_word_suffix="</w>"))
    whole.add_special_tokens([end])
    whole.post_processor = processors.TemplateProcessing(f"$A {end}", None, [(end, 0)])
    whole.enable_truncation(3)
    whole.save(str(tmp_path / "tokenizer.json"))
    one = Bpe(files._replace(vocabulary=tmp_path / "tokenizer.json", merges=None), clip=True)
    both = Bpe(files, clip=True)
    assert one.encode(TEXTS) == both.encode(TEXTS) and one.special(end) == both.special(end)


def test_a_file_that_is_no_vocabulary_or_lacks_a_token(files, tmp_path):
    wrong = tmp_path / "vocab.json"
    for content, merges in (("[1]", files.merges), ('{"a": 0}', files.merges), ("{}", None)):
        wrong.write_text(content)
        with pytest.raises(UserError, match="holds no BPE"):
            Bpe(files._replace(vocabulary=wrong, merges=merges), clip=True)
    with pytest.raises(UserError, match=r"lacks <.other.>: download it again"):
        Bpe(files, clip=True).special("<|other|>")
