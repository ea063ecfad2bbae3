"""Length, diversity, repetition, detail and facts of captions, counted by hand."""

import json
import sys

import pytest

from captioning.files.writing import write_json
from captioning.metrics.base import build_evaluators
from tests.captioning.metrics.conftest import scored

pytestmark = pytest.mark.usefixtures("no_java")

# The Dogs occur twice: neither a capital nor a full stop makes another caption.
CAPTIONS = {1: "A dog and a dog.", "b": "a  dog and a dog", 3: "a red, red cat", 4: ""}
HUMAN = {1: ["A dog, and it runs."], "b": ["dogs"], 3: ["the red cat", "a Cat"], 4: ["something"]}


def test_diversity_is_as_its_formulas_and_training_captions_are_compared(tmp_path):
    path = tmp_path / "train.json"
    captions = ["a dog, and A DOG", "two zebras", "a red cat", "A red red cat."]
    rows = [{"image": f"{n // 2}.jpg", "caption": text} for n, text in enumerate(captions)]
    path.write_text(json.dumps(rows))
    expected = {
        "lex_div": 0.005,  # a dog and red cat
        "ttr": 5 / 14,
        "distinct_1": 5 / 14,
        "distinct_2": 6 / 14,  # a-dog dog-and and-a a-red red-red red-cat, none across captions
        "distinct_captions": 3 / 4,
        "vocab_use": 5 / 10,  # of: a dog and it runs dogs the red cat something
    }
    of_training = {"seen_captions": 3 / 4, "train_vocab_use": 5 / 7}
    for options, further in (({}, {}), ({"train_captions": str(path)}, of_training)):
        result = scored("diversity", CAPTIONS, HUMAN, **options)
        values = {name: estimate.value for name, estimate in result.metrics.items()}
        assert values == pytest.approx({**expected, **further})
        assert all(e.low is None and e.high is None and e.n == 4 for e in result.metrics.values())
        assert result.settings == {"tokenizer": "regex (no Java)", **options}


def test_repetition_is_the_mean_over_captions_that_have_ngrams():
    looping = {1: "The end. The end! The end?", 2: "one, two", 3: "", 4: "a cat and a cat"}
    scores = scored("repetition", looping)
    values = {name: estimate.value for name, estimate in scores.metrics.items()}
    expected = {"rep_2": 85 / 3, "rep_3": 25, "rep_4": 50 / 3, "loops": 25}
    assert values == pytest.approx(expected)
    first, second, *_ = zip(*scores.per_caption.values())
    assert first == pytest.approx((60, 50, 100 / 3, 100)) and second == (0, None, None, 0)
    loops = {  # {caption: whether a word or phrase runs on}
        "a very very big dog": False,
        "a very very very big dog": True,
        "a dog a dog": True,
        "on a table a dog on a table": False,
        "x a b c d e a b c d e": True,
    }
    found = scored("repetition", dict(enumerate(loops))).per_caption["loops"]
    assert [bool(value) for value in found] == list(loops.values())


def test_words_of_each_kind_are_those_counted_by_hand_by_textblob(monkeypatch):
    kinds = {  # {caption: (nouns, adjectives, numbers, relations)}
        "A small dog and two cats on a red sofa.": (3, 2, 1, 1),
        "Three men in blue shirts next to a bus": (3, 1, 1, 2),
        "a woman standing in front  of a large window": (2, 1, 0, 1),
        "a group of people walking to the beach": (3, 0, 0, 1),  # "of" relates nothing
        "a boy trying to swim while the sun is shining": (2, 0, 0, 0),
        "a girl reaching up for a kite": (2, 0, 0, 1),
        "a man looking out of a car": (2, 0, 0, 1),
        "12 birds": (1, 0, 1, 0),
        "a dog jumps": (2, 0, 0, 0),  # a verb that the tagger does not know as one
        "...": (0, 0, 0, 0),
    }
    scores = scored("detail", dict(enumerate(kinds)))
    assert list(scores.metrics) == ["nouns", "adjectives", "numbers", "relations"]
    assert list(zip(*scores.per_caption.values())) == list(kinds.values())
    means = [sum(column) / len(kinds) for column in zip(*kinds.values())]
    assert [each.value for each in scores.metrics.values()] == pytest.approx(means)
    [evaluator] = build_evaluators(["detail"])
    assert evaluator.unavailable() == {}
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    line = "detail needs TextBlob: pip install textblob"
    assert evaluator.unavailable() == dict.fromkeys(scores.metrics, line)


SCENES = {
    1: ["sand", ["circle", "crimson", "huge", 0, 0]],
    2: ["sand", ["circle", "coral", "huge", 0, 0]],
    3: ["snow", ["star", "navy", "tiny", 2, 2], ["ring", "lime", "large", 0, 0]],
}
STATED = {
    1: "a red circle",  # true of 1 and of 2
    2: "a coral circle on the snow",  # red, light and circle, and not the ground
    3: "two things",
}


def test_facts_and_ranks_are_those_counted_by_hand(tmp_path):
    def facts(captions):
        return scored("facts", captions, facts_file=str(tmp_path / "scenes.json"))

    write_json({"made_from": {}, "scenes": SCENES}, tmp_path / "scenes.json")
    scores = facts(STATED)
    values = {name: estimate.value for name, estimate in scores.metrics.items()}
    expected = {"true_facts": (2 + 3 + 1) / 3, "wrong_facts": 100 / 7}
    expected.update({"scene_R@1": 200 / 3, "scene_R@5": 100})  # the first fits scene 2 as well
    assert values == pytest.approx(expected)
    assert scores.per_caption["true_facts"] == (2, 3, 1)
    assert scores.per_caption["scene_R@1"] == [0, 100, 100]
    assert facts({str(i): caption for i, caption in STATED.items()}) == scores
    # Each of several captions of an image has the values that it has as the only one.
    single = [facts({**STATED, 1: text}).per_caption for text in (STATED[1], "sand")]
    numbered = {"1#0": STATED[1], "1#1": "sand", 2: STATED[2], 3: STATED[3]}
    for name, values in facts(numbered).per_caption.items():
        assert list(values) == [single[0][name][0], single[1][name][0], *single[0][name][1:]]
    scores = facts({1: "", 2: "and the"})  # which state nothing
    assert scores.metrics["true_facts"].value == 0 and "wrong_facts" in scores.skipped
    assert "has no entry for image 7" in facts({7: "a circle"}).skipped["true_facts"]
