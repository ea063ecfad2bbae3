"""METEOR and PTBTokenizer against their Java programs, and what is said of Java that fails."""

import json
import os
import shutil
import subprocess
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from captioning.metrics import meteor
from captioning.metrics.java import JavaError, run_java
from captioning.metrics.meteor import count_matches, meteor_scores
from captioning.metrics.tokenizer import tokenize
from tests.captioning.conftest import is_running
from tests.markers import slow
from tests.programs import raises_line

CAPTIONS = [
    *("a man rides a horse", "", "two cats sit on a red sofa", "a | | | dog", "zebra"),
    # Two captions that equal a reference, and one that does in two chunks.
    *("zebra", "a dog on a sofa", "a dog on a sofa"),
]
REFERENCES = [
    ["a man on a horse", "man riding"],
    ["something is here"],
    ["cats sitting on the couch", "", "a pair of cats"],
    ["a dog"],
    ["a train at a station"],
    *(["zebra"], ["a dog on a sofa"], ["a sofa on a dog"]),
]
# Recorded from METEOR 1.5 of pycocoevalcap 1.2: the counts of each caption, its score, and the
# score of all.
STATISTICS = [
    [5, 5, 2, 3, *[2] * 4, *[0] * 12, 2, 4, 4],
    [0, 3, 0, 1, *[0] * 19],
    [7, 5, 3, 2, *[1] * 6, 0, 0, 1, 1, *[0] * 6, 2, 4, 4],
    [5, 2, *[1] * 6, *[0] * 12, 2, 2, 2],
    [1, 5, 0, 3, *[0] * 19],
    [1, 1, 0, 0, 1, 1, *[0] * 14, 1, 1, 1],
    [5, 5, 3, 3, 2, 2, 3, 3, *[0] * 12, 1, 5, 5],
    [5, 5, 3, 3, 2, 2, 3, 3, *[0] * 12, 3, 5, 5],
]
EACH = [
    *(0.4108986339976993, 0.0, 0.3376630369468163, 0.2990654205607477, 0.0),
    *(1.0, 1.0, 0.45827172913153946),
]
TOTAL = 0.3317019877692268

LINES = [" ".join(f"{value:.1f}" for value in values) for values in STATISTICS]
_ASKED = [
    f"'SCORE ||| {' ||| '.join([*group, caption])}') echo '{line}';;"
    for caption, group, line in zip(CAPTIONS, REFERENCES, LINES)
]
# A script for `fake_java`. It answers no other question.
SCRIPT = f"""
while IFS= read -r line; do case "$line" in
{chr(10).join(_ASKED)}
*) echo "unexpected: $line"; exit 4;;
esac; done
"""


@pytest.mark.parametrize("fixture", ["fake_java", slow("java")])
def test_scores_are_those_of_the_java_program(request, fixture):
    """Of single captions, of the set, and of resamples, which are sums over captions."""
    if put_in_its_place := request.getfixturevalue(fixture):
        put_in_its_place(SCRIPT)
    scores = meteor_scores(CAPTIONS, REFERENCES)
    [total], [each] = scores.metrics.values(), scores.per_caption.values()
    assert total.value == pytest.approx(TOTAL, abs=1e-12) and total.n == len(each)
    assert total.low < total.value < total.high
    assert each == pytest.approx(EACH, abs=1e-12)
    found, known = (np.delete(s, 20, 1) for s in (count_matches(CAPTIONS, REFERENCES), STATISTICS))
    assert found.tolist() == known.tolist()


def test_a_shared_program_scores_for_forks_and_is_replaced(fake_java, monkeypatch):
    fake_java(f"echo $$ >> $0.started; {SCRIPT}")
    alone = meteor_scores(CAPTIONS, REFERENCES)
    started = Path(os.environ["PATH"].split(os.pathsep)[0], "java.started")
    started.unlink()
    monkeypatch.setattr(meteor, "run_java", lambda *_, **__: pytest.fail("its own program"))
    with meteor.shared_process(start=True):
        assert meteor_scores(CAPTIONS, REFERENCES) == alone
        child = os.fork()
        if child == 0:
            os._exit(7 if meteor_scores(CAPTIONS, REFERENCES) == alone else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        [first] = started.read_text().split()
        os.kill(int(first), 9)
        while is_running(first):
            time.sleep(0.01)
        assert meteor_scores(CAPTIONS, REFERENCES) == alone
    _, second = started.read_text().split()
    assert not is_running(second) and meteor.ADDRESS_VARIABLE not in os.environ


def test_failing_java_is_reported_and_no_answer_of_a_shared_program(fake_java):
    fake_java("[ -e $0.once ] || { touch $0.once; read line; exit 3; }" + SCRIPT)
    with meteor.shared_process():
        assert meteor_scores(CAPTIONS, REFERENCES).per_caption["METEOR"] == pytest.approx(EACH)
    said = "Picked up JAVA_TOOL_OPTIONS\nException in thread main: heap\n at Meteor.main"
    for script, line in (
        (f"read line; echo 1; echo '{said}' >&2; exit 3", "code 3: Exception in thread main: heap"),
        ("cat", "answer is invalid: could not convert string to float: 'SCORE'"),
    ):
        fake_java(script)
        with raises_line(JavaError, line):
            meteor_scores(CAPTIONS, REFERENCES)


def test_java_is_killed_with_what_it_started(fake_java, tmp_path):
    # The script's own child holds the pipes, which must not be waited for either.
    fake_java(f"cat > {tmp_path}/text; sleep 60 & echo $! > {tmp_path}/child; wait")
    long = "question\n" * 100_000
    with raises_line(JavaError, "no result within 2 s"):
        run_java("-jar", text=long, seconds=2)
    assert (tmp_path / "text").read_text() == long
    until = time.monotonic() + 30
    while is_running((tmp_path / "child").read_text()):
        assert time.monotonic() < until


@pytest.mark.parametrize("locale", ["de_DE", "tr_TR"])
def test_the_users_locale_changes_no_program(java, locale, tmp_path, monkeypatch):
    made = f"{tmp_path}/{locale}.UTF-8"
    if shutil.which("localedef") is None:
        pytest.skip("there is no localedef, which makes locales")
    subprocess.run(["localedef", "-i", locale, "-f", "UTF-8", made], check=True)
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", f"{locale}.UTF-8")
    show = ["-XshowSettings:locale", "-version"]
    plain = subprocess.run(["java", *show], capture_output=True, text=True).stderr
    assert "default locale = English" not in plain
    assert "default locale = English" in run_java(*show, seconds=60)[1]


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


@pytest.mark.parametrize(("fixture", "name"), [("java", "PTBTokenizer"), ("no_java", NO_JAVA)])
def test_tokens_are_those_of_ptbtokenizer(request, fixture, name):
    """Those of each caption, with its image; also of long ones, and of odd characters."""
    request.getfixturevalue(fixture)
    long = " ".join(["man"] * 10_000)
    odd = ["\x00", "\ud83d", "-" * 10_000, "." * 10_000, "x" * 10_000]
    captions = {7: ["", "a\nb", ""], "7": list(TOKENS), 8: [], "last": [long, *odd, "end", ""]}
    tokenized, tokenizer = tokenize(captions)
    assert tokenizer == name and list(tokenized) == list(captions)
    assert (tokenized[7], tokenized[8]) == (["", "a b", ""], [])
    assert dict(zip(TOKENS, tokenized["7"])) == TOKENS
    first, *_, last_odd, end, empty = tokenized["last"]
    assert (first, last_odd, end, empty) == (long, "x" * 10_000, "end", "")
    assert len(tokenized["last"]) == 8


@pytest.mark.slow
def test_imitation_agrees_with_java_on_real_captions(java, shared_data, monkeypatch, tmp_path):
    files = sorted((shared_data / "karpathy").glob("*_gt.json"))
    files += [shared_data / "karpathy" / "flickr30k_test.json"]
    captions = []
    for file in files:
        entries = json.loads(file.read_text())
        entries = entries["annotations"] if isinstance(entries, dict) else entries
        texts = (entry["caption"] for entry in entries)
        captions += chain(*([text] if isinstance(text, str) else text for text in texts))
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
