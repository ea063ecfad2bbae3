"""Captions scored by several evaluators, of which one that fails costs its own metrics alone."""

import pytest

from captioning.metrics import diversity, evaluator
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.evaluator import Evaluator, Scores, build_evaluators
from captioning.metrics.scoring import score
from captioning.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("no_java")  # whose start takes seconds


def test_score_takes_results_or_a_mapping():
    references = {5: ["a man on a horse"], 6: ["a cat"]}
    results = [{"image_id": 5, "caption": "a man"}, {"image_id": 6, "caption": "a cat"}]
    scores = score(results, references)
    assert scores == score({5: "a man", 6: "a cat"}, references)
    assert scores == score(results, {str(i): group for i, group in references.items()})
    assert scores.per_image["ROUGE_L"][1] == 1.0
    with pytest.raises(UserError, match="nothing to score"):
        score({}, references)


class Broken(Evaluator):
    name = "itm"

    def evaluate(self, captions):
        raise UserError("no scene of image 5")


class Undefined(Evaluator):
    name = "facts"

    def evaluate(self, captions):
        nothing = Estimate(float("nan"), None, None, 2)
        return Scores({"wrong_facts": nothing}, {"wrong_facts": [None, None]}, {"scenes": 2})


def test_an_evaluator_that_fails_loses_no_other(monkeypatch):
    monkeypatch.setattr(diversity, "zip", lambda *_: 1 / 0, raising=False)
    own = [Broken(), Undefined()]
    chosen = [*own, *build_evaluators(["diversity", "length"])]
    scores = score({5: "a man", 6: "a"}, {5: ["a"], 6: ["b"]}, chosen)
    assert list(scores.metrics) == ["cap_len"] and scores.settings == {"scenes": 2}
    assert scores.per_image == {"wrong_facts": [None, None], "cap_len": [2, 1]}
    undefined = scores.skipped.pop("wrong_facts")
    assert "undefined" in undefined
    assert scores.skipped == {
        **dict.fromkeys(("ITM", "ITC"), "no scene of image 5"),
        **dict.fromkeys(diversity.Diversity().names, "ZeroDivisionError('division by zero')"),
    }


def test_captions_are_tokenized_once(monkeypatch):
    calls = []

    def tokenize(captions):
        calls.append(captions)
        return captions, "none"

    monkeypatch.setattr(evaluator, "tokenize", tokenize)
    scores = score({5: "a man", 6: "a"}, {5: ["a"], 6: ["b"], 7: ["c"]})
    assert calls == [{5: ["a man", "a"], 6: ["a", "b"]}]
    assert scores.settings == {"tokenizer": "none"} and {"ttr", "CIDEr"} <= scores.metrics.keys()


def test_ids_of_both_kinds_are_kept_apart():
    predictions = {1: "a man", "two": "a dog", 3: "a cat and a dog", "3": ""}
    scores = score(predictions, {**{i: ["a man"] for i in predictions}, "unused": ["no"]})
    assert scores.per_image["cap_len"] == [2, 2, 5, 0]
