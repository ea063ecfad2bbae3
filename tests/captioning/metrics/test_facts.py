"""The facts metrics on three scenes, counted by hand."""

import pytest

from captioning.files.writing import write_json
from tests.captioning.metrics.conftest import scored

SCENES = {
    1: ["sand", ["circle", "crimson", "huge", 0, 0]],
    2: ["sand", ["circle", "coral", "huge", 0, 0]],
    3: ["snow", ["star", "navy", "tiny", 2, 2], ["ring", "lime", "large", 0, 0]],
}
CAPTIONS = {
    1: "a red circle",  # true of 1 and of 2
    2: "a coral circle on the snow",  # red, light and circle, and not the ground
    3: "two things",
}


def test_facts_and_ranks_are_those_counted_by_hand(tmp_path):
    def facts(captions):
        return scored("facts", captions, facts_file=str(tmp_path / "scenes.json"))

    write_json({"made_from": {}, "scenes": SCENES}, tmp_path / "scenes.json")
    scores = facts(CAPTIONS)
    values = {name: estimate.value for name, estimate in scores.metrics.items()}
    expected = {"true_facts": (2 + 3 + 1) / 3, "wrong_facts": 100 / 7}
    expected.update({"scene_R@1": 200 / 3, "scene_R@5": 100})  # the first fits scene 2 as well
    assert values == pytest.approx(expected)
    assert scores.per_caption["true_facts"] == (2, 3, 1)
    assert scores.per_caption["scene_R@1"] == [0, 100, 100]
    assert facts({str(i): caption for i, caption in CAPTIONS.items()}) == scores
    # Each of several captions of an image has the values that it has as the only one.
    single = [facts({**CAPTIONS, 1: text}).per_caption for text in (CAPTIONS[1], "sand")]
    numbered = {"1#0": CAPTIONS[1], "1#1": "sand", 2: CAPTIONS[2], 3: CAPTIONS[3]}
    for name, values in facts(numbered).per_caption.items():
        assert list(values) == [single[0][name][0], single[1][name][0], *single[0][name][1:]]
    scores = facts({1: "", 2: "and the"})  # which state nothing
    assert scores.metrics["true_facts"].value == 0 and "wrong_facts" in scores.skipped
    assert "has no entry for image 7" in facts({7: "a circle"}).skipped["true_facts"]
