"""People scored by each other's captions."""

import json

from captioning.metrics.scoring import score
from captioning.report.comparison import compare, held_out


def test_held_out():
    captions, others = held_out({7: ["a", "b", "c"], 8: ["d", "e", "f"], 9: ["g"], 10: ["h", "i"]})
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


def test_one_caption_an_image(make_run, world, tmp_path):
    entries = json.loads((world / "scenes_test.json").read_text())
    for entry in entries:
        entry["caption"] = entry["caption"][3]
    (tmp_path / "single.json").write_text(json.dumps(entries))
    comparison = compare([make_run("one", test_file=str(tmp_path / "single.json"))])
    assert set(comparison.human.metrics) == {"cap_len", "lex_div", "true_facts", "wrong_facts"}
    assert any("one human caption" in sentence for sentence in comparison.missing)
