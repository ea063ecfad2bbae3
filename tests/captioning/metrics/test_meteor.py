"""METEOR against the recorded answers of its Java program, and what is said of Java that fails."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from captioning.metrics import meteor
from captioning.metrics.java import JavaError, run_java
from captioning.metrics.meteor import count_matches, meteor_scores
from tests.captioning.conftest import is_running
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


@pytest.fixture(params=["recorded", pytest.param("run", marks=pytest.mark.slow)])
def meteor_by_java(request):
    """Let a script answer as METEOR's Java program did, or run the program."""
    if request.param == "run":
        request.getfixturevalue("java")
    else:
        request.getfixturevalue("fake_java")(SCRIPT)


def test_scores_are_those_of_the_java_program(meteor_by_java):
    """Of single captions, of the set, and of resamples, which are sums over captions."""
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
    message = "Picked up JAVA_TOOL_OPTIONS\nException in thread main: heap space\n at Meteor.main"
    for script, line in (
        (
            f"read line; echo 1; echo '{message}' >&2; exit 3",
            "code 3: Exception in thread main: heap",
        ),
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
