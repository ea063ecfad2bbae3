"""METEOR is that of pycocoevalcap, and does not hang with its Java."""

import pytest

from captioning.metrics import meteor
from captioning.metrics.java import JavaError
from captioning.metrics.meteor import meteor_scores

CAPTIONS = ["a man rides a horse", "", "two cats sit on a red sofa", "a | | | dog", "zebra"]
REFERENCES = [
    ["a man on a horse", "man riding"],
    ["something is here"],
    ["cats sitting on the couch", "", "a pair of cats"],
    ["a dog"],
    ["a train at a station"],
]


def test_scores_are_those_of_pycocoevalcap(java):
    total, each = meteor_scores(CAPTIONS, REFERENCES)
    # Recorded from Meteor().compute_score of pycocoevalcap 1.2.
    assert total == pytest.approx(0.2297044399120868)
    assert each == pytest.approx([0.4108986339976993, 0, 0.3376630369468163, 0.2990654205607477, 0])


@pytest.mark.parametrize(
    ("script", "seconds", "reason"),
    [
        ("exec sleep 60", 0.5, "no result within 1 s"),
        ("read line; echo 1; echo 'Error: broken' >&2; exit 1", 60, "exit code 1: Error: broken"),
        ("cat", 60, "makes no sense: .*SCORE"),
    ],
)
def test_failing_java_is_reported(fake_java, monkeypatch, script, seconds, reason):
    monkeypatch.setattr(meteor, "_SECONDS_TO_START", seconds)
    fake_java(script)
    with pytest.raises(JavaError, match=reason):
        meteor_scores(CAPTIONS, REFERENCES)
