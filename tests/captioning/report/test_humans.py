"""People scored by each other's captions."""

import json

import pytest

from captioning.metrics.scoring import score
from captioning.report.comparison import compare, hold_out
from captioning.report.page import render


def test_held_out():
    captions, others = hold_out({7: ["a", "b", "c"], 8: ["d", "e", "f"], 9: ["g"], 10: ["h", "i"]})
    assert captions == {7: "a", 8: "e", 9: "g", 10: "i"}
    assert others == {7: ["b", "c"], 8: ["d", "f"], 10: ["h"]}


def test_people_are_scored_by_the_others(runs, world):
    human = compare(runs).human
    entries = json.loads((world / "scenes_test.json").read_text())
    mine = {e["image_id"]: e["caption"][i % 5] for i, e in enumerate(entries)}
    rest = {
        e["image_id"]: [c for j, c in enumerate(e["caption"]) if j != i % 5]
        for i, e in enumerate(entries)
    }
    expected = score(mine, rest).metrics
    assert human.captions == mine
    for name in ("CIDEr", "Bleu_4", "cap_len", "lex_div"):
        assert human.metrics[name] == expected[name]
    assert human.metrics["wrong_facts"].value == 0  # the annotators of the world tell the truth
    assert "Bleu_1" not in human.metrics  # which no run has


def test_people_are_scored_by_objects_and_no_judge_is_asked(make_run, tmp_path, monkeypatch):
    pytest.importorskip("textblob", reason="chair needs TextBlob")
    monkeypatch.setattr("captioning.metrics.judge.ChatServer.ask", lambda *_: pytest.fail("asked"))
    (tmp_path / "words.txt").write_text("circle, disc\nstar\n")
    plain = make_run("plain")
    ids = [entry["image_id"] for entry in json.loads((plain / "result" / "test.json").read_text())]
    (tmp_path / "objects.json").write_text(json.dumps({i: [] for i in ids}))
    value = {"value": 25.0, "low": 20.0, "high": 30.0, "n": 12}
    other = make_run(
        "other",
        scores={"CHAIRi": value, "CLAIR": value},
        metrics=["chair", "clair"],
        objects_file=str(tmp_path / "objects.json"),
        synonyms=str(tmp_path / "words.txt"),
        judge_url="https://host.example/v1",
        judge_model="wise",
    )
    comparison = compare([plain, other])
    assert "CHAIRi" in comparison.human.metrics and "CLAIR" not in comparison.human.metrics
    assert 0 <= comparison.human.metrics["CHAIRi"].value < 50  # people mostly agree
    assert "cap_len" in comparison.human.metrics


def test_one_caption_an_image(make_run, world, tmp_path):
    entries = json.loads((world / "scenes_test.json").read_text())
    for entry in entries:
        entry["caption"] = entry["caption"][3]
    (tmp_path / "single.json").write_text(json.dumps(entries))
    comparison = compare([make_run("one", test_file=str(tmp_path / "single.json"))])
    assert set(comparison.human.metrics) == {"cap_len", "lex_div", "true_facts", "wrong_facts"}
    assert any("one human caption" in sentence for sentence in comparison.missing)
    assert "one reference fewer" not in render(comparison)
