"""The facts metrics on three scenes, counted by hand."""

import pytest

from captioning.files.writing import write_json
from captioning.metrics.evaluator import build_evaluators
from captioning.metrics.scoring import score

SCENES = {
    1: ["sand", ["circle", "crimson", "huge", 0, 0]],
    2: ["sand", ["circle", "coral", "huge", 0, 0]],
    3: ["snow", ["star", "navy", "tiny", 2, 2], ["ring", "lime", "large", 0, 0]],
}


@pytest.fixture
def evaluators(tmp_path):
    path = tmp_path / "scenes.json"
    write_json({"made_from": {}, "scenes": SCENES}, path)
    return build_evaluators(["facts"], facts_file=str(path))


CAPTIONS = {
    1: "a red circle",  # true of 1 and of 2
    2: "a coral circle on the snow",  # red, light and circle, and not the ground
    3: "two things",
}


def scored(captions, evaluators):
    return score(captions, {image_id: ["a circle"] for image_id in captions}, evaluators)


def test_counts_and_ranks(evaluators):
    scores = scored(CAPTIONS, evaluators)
    values = {name: estimate.value for name, estimate in scores.metrics.items()}
    assert values == pytest.approx(
        {
            "true_facts": (2 + 3 + 1) / 3,
            "wrong_facts": 100 / 7,
            "scene_R@1": 200 / 3,  # the first caption fits scene 2 as well
            "scene_R@5": 100,
        }
    )
    assert scores.per_image["true_facts"] == [2, 3, 1]
    assert scores.per_image["scene_R@1"] == [0, 100, 100]


def test_ids_may_be_strings(evaluators):
    scores = scored({str(i): caption for i, caption in CAPTIONS.items()}, evaluators)
    assert scores.metrics["true_facts"].value == 2 and not scores.skipped


def test_an_image_with_several_captions_is_ranked_once(evaluators):
    """Each caption has the values that it has as the only caption of its image."""
    single = [scored({**CAPTIONS, 1: text}, evaluators).per_image for text in (CAPTIONS[1], "sand")]
    numbered = {"1#0": CAPTIONS[1], "1#1": "sand", 2: CAPTIONS[2], 3: CAPTIONS[3]}
    for name, values in scored(numbered, evaluators).per_image.items():
        assert values == [single[0][name][0], single[1][name][0], *single[0][name][1:]]


def test_captions_that_state_nothing(evaluators):
    scores = scored({1: "", 2: "and the"}, evaluators)
    assert scores.metrics["true_facts"].value == 0 and "wrong_facts" in scores.skipped


def test_an_unknown_image_is_named(evaluators):
    scores = scored({1: "a circle", 7: "a circle"}, evaluators)
    assert "has no entry for image 7" in scores.skipped["true_facts"]
