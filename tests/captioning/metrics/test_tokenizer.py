"""Tokens as PTBTokenizer (CoreNLP 3.4.1) gives them, by Java and by the imitation of it."""

import json

import pytest
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from captioning.metrics.tokenizer import tokenize

# What `PTBTokenizer -preserveLines -lowerCase` answers, less the punctuation that COCO removes.
TOKENS = {
    "A man's dog, and the dogs' bowl.": "a man 's dog and the dogs bowl",
    "He can't; they don\u2019t, I've, we'll": "he ca n't they do n't i 've we 'll",
    "It cannot be gonna": "it can not be gon na",
    "black-and-white t-shirt - end--stop": "black-and-white t-shirt end stop",
    "(a cat) [on] {it}": "-lrb- a cat -rrb- -lsb- on -rsb- -lcb- it -rcb-",
    "1,000 at 3.5% for $7.50, 50/50 1/2": "1,000 at 3.5 % for $ 7.50 50/50 1/2",
    "at 10:30pm, 5 p.m. in the U.S.": "at 10:30 pm 5 p.m. in the u.s.",
    "Mr. Smith on 8th Ave. and Main St.": "mr. smith on 8th ave. and main st.",
    "Hello... what?! Stop!! no!": "hello what ?! stop !! no",
    "\"his/her\" ``and/or''": "his/her and/or",
    "a runway.being loaded": "a runway.being loaded",
    "o'clock hors d'oeuvres": "o'clock hors d'oeuvres",
    "AT&T and M&M's & more": "at&t and m&m 's & more",
    "rock'n'roll of the '90s": "rock 'n' roll of the '90s",
    "a ||| b": "a | | | b",
    "café 日本 £5 — “so”": "café 日本 # 5 so",
    "कुत्ता दौड़ता है, หมาวิ่ง": "कुत्ता दौड़ता है หมาวิ่ง",
    "un cafe\u0301 noir, كَلْبٌ": "un cafe\u0301 noir كَلْبٌ",
    "a😀b cat 😀": "a b cat",
    "😀": "",
    "": "",
    " . !": "",
    "a\nb\r\n c\u2028d\x0be\x85f\tg": "a b c d e f g",
}


NO_JAVA = "regex (no Java)"


@pytest.fixture(params=["PTBTokenizer", NO_JAVA])
def tokenizer(request):
    """Run the test with either tokeniser, and give the name that it goes by."""
    request.getfixturevalue("java" if request.param == "PTBTokenizer" else "no_java")
    return request.param


def test_tokens_are_those_of_ptbtokenizer(tokenizer):
    """Those of each caption, with its image; also of long ones, and of odd characters."""
    long = " ".join(["man"] * 10_000)
    odd = ["\x00", "\ud83d", "-" * 10_000, "." * 10_000, "x" * 10_000]
    captions = {7: ["", "a\nb", ""], "7": list(TOKENS), 8: [], "last": [long, *odd, "end", ""]}
    tokenized, name = tokenize(captions)
    assert name == tokenizer and list(tokenized) == list(captions)
    assert (tokenized[7], tokenized[8]) == (["", "a b", ""], [])
    assert dict(zip(TOKENS, tokenized["7"])) == TOKENS
    first, *_, last_odd, end, empty = tokenized["last"]
    assert (first, last_odd, end, empty) == (long, "x" * 10_000, "end", "")
    assert len(tokenized["last"]) == 8


@pytest.mark.slow
def test_imitation_agrees_with_java_on_real_captions(java, shared_data, monkeypatch, tmp_path):
    files = sorted((shared_data / "karpathy").glob("*_gt.json"))
    files += [shared_data / "karpathy" / "flickr30k_test.json"]
    captions = [text for file in files for text in _captions(file)]
    by_java, name = tokenize({"all": captions})
    assert name == "PTBTokenizer"
    first = {i: [{"caption": text}] for i, text in enumerate(captions[:1000])}
    theirs = PTBTokenizer().tokenize(first)
    assert [text for (text,) in theirs.values()] == by_java["all"][:1000]
    monkeypatch.setenv("PATH", str(tmp_path))
    by_regex, name = tokenize({"all": captions})
    assert name == NO_JAVA
    # Java joins "22 3/4" with a no-break space, at which the metrics split.
    different = [a for a, b in zip(by_java["all"], by_regex["all"]) if a.split() != b.split()]
    assert len(captions) > 50_000
    assert len(different) <= 0.0005 * len(captions), different[:5]


def test_captions_are_tokenised_without_java_if_it_dies_or_loses_a_line(fake_java):
    fake_java("echo 'a cat'; [ -e $0.once ] && exit 9; touch $0.once")
    tokenized, name = tokenize({1: ["A cat.", "A dog."]})
    assert tokenized == {1: ["a cat", "a dog"]}
    assert name == "regex (Java gave 1 lines for 2 captions)"
    assert tokenize({1: ["A cat."]})[1] == "regex (Java ended with exit code 9)"


def _captions(file):
    entries = json.loads(file.read_text())
    for entry in entries["annotations"] if isinstance(entries, dict) else entries:
        yield from [entry["caption"]] if isinstance(entry["caption"], str) else entry["caption"]
