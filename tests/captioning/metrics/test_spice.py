"""SPICE's preconditions, and its traffic with Java (the models it needs are not at hand)."""

import json

import pytest

from captioning.metrics import coco
from captioning.metrics.coco import spice_problem, spice_scores
from captioning.metrics.java import JavaError


@pytest.fixture
def models(monkeypatch, tmp_path):
    """Pretend that SPICE is installed with its models."""
    (tmp_path / "lib").mkdir()
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (tmp_path / "lib" / name).touch()
    monkeypatch.setattr(coco, "_jar", lambda: tmp_path / "spice.jar")
    return tmp_path / "lib"


def test_it_runs_with_its_models_and_an_old_java(models):
    assert spice_problem(8) is None and spice_problem(14) is None
    assert "Java 8 to 14, this is Java 15" in spice_problem(15)
    next(models.iterdir()).unlink()
    assert "get_stanford_models" in spice_problem(8)


def test_scores_are_read_by_image(models, fake_java, tmp_path):
    # Answers in another order than asked, as nothing promises the order.
    result = [{"image_id": i, "scores": {"All": {"f": f}}} for i, f in [(1, 0.5), (0, 0.25)]]
    (tmp_path / "result.json").write_text(json.dumps(result))
    keep_heap = f'echo "$2" > {tmp_path}/heap'
    fake_java(f'{keep_heap}; cp "$5" {tmp_path}/asked.json; cp {tmp_path}/result.json "$7"')
    assert spice_scores(["a café", ""], [["a", "b"], ["c"]], 60, "2G") == [0.25, 0.5]
    assert (tmp_path / "heap").read_text() == "-Xmx2G\n"
    assert json.loads((tmp_path / "asked.json").read_text()) == [
        {"image_id": 0, "test": "a café", "refs": ["a", "b"]},
        {"image_id": 1, "test": "", "refs": ["c"]},
    ]


@pytest.mark.parametrize(
    ("script", "seconds", "reason"),
    [
        ("exec sleep 60", 0.5, "no result within"),
        ("exit 1", 60, "exit code 1"),
        ("exit 0", 60, "No such file"),
    ],
)
def test_failing_java_is_reported(models, fake_java, script, seconds, reason):
    fake_java(script)
    with pytest.raises(JavaError, match=reason):
        spice_scores(["a"], [["a"]], seconds, "2G")
