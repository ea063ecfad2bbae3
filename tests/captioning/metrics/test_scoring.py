"""Scores of several evaluators, their intervals and table, and differences of two sets."""

import math

import numpy as np
import pytest

from captioning.metrics import diversity, intervals, scoring
from captioning.metrics.base import Evaluator, Metric, Scores, Settings, build_evaluators
from captioning.metrics.intervals import Estimate, mean_estimate, median_estimate, ratio_estimate
from captioning.metrics.scoring import Difference, compare, format_table, score
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from tests.programs import raises_line

pytestmark = pytest.mark.usefixtures("no_java")  # whose start takes seconds


def test_the_table_has_the_published_order_intervals_skipped_metrics_and_remarks():
    metrics = {
        "CIDEr": Estimate(12.5, 11.0, 14.1, 1),
        "METEOR": Estimate(0.1954, 0.19, 0.21, 1),
        "lex_div": Estimate(0.292, None, None, 1),
        "cap_len": Estimate(9.893, 9.75, 10.04, 1),
    }
    skipped = {"SPICE": "it broke", "ROUGE_L": "it broke", "Bleu_1": "no words"}
    scores = Scores(metrics, {}, {"tokenizer": "PTBTokenizer", "empty": 0, "seed": 7}, skipped)
    lines = [
        "Cap. Len.    9.89   ±0.14",
        "Lex. Div.   0.292",
        "BLEU-1          -",
        "METEOR      0.195  ±0.010",
        "ROUGE-L         -",
        "CIDEr      12.500  ±1.550",
        "SPICE           -",
        "±: half of the 95 % interval over images",
        "99 captions, tokenizer: PTBTokenizer, seed: 7",
        "CIDEr weights words by how rare they are in the references of these 99 captions, too few "
        "for comparisons: set cider_df",
        "By diversity, 99 images compare only with sets of as many",
        "BLEU-1 skipped: no words",
        "ROUGE-L, SPICE skipped: it broke",
    ]
    assert format_table(scores, 99).splitlines() == lines
    assert format_table(scores, 100).splitlines()[9:] == lines[11:]
    scores.settings["cider_df"] = "coco.json"
    assert format_table(scores, 99).splitlines()[9:] == lines[10:]


class Broken(Evaluator):
    metrics = (Metric("ITM", "ITM"), Metric("ITC", "ITC"))

    def evaluate(self, captions):
        raise UserError("no scene of image 5")


class Undefined(Evaluator):
    metrics = (Metric("wrong_facts", "Wrong %"),)

    def evaluate(self, captions):
        nothing = Estimate(float("nan"), None, None, 2)
        return Scores({"wrong_facts": nothing}, {"wrong_facts": [None, None]}, {"scenes": 2})


def test_an_evaluator_that_fails_loses_no_other(monkeypatch):
    monkeypatch.setattr(diversity, "zip", lambda *_: 1 / 0, raising=False)
    own = [Broken(None, Settings()), Undefined(None, Settings())]
    chosen = [*own, *build_evaluators(["diversity", "length"])]
    captions, references = {5: "a man", 6: "a"}, {5: ["a"], 6: ["b"]}
    scores = score(captions, references, chosen)
    assert list(scores.metrics) == ["cap_len"] and scores.settings == {"scenes": 2}
    assert scores.per_caption == {"wrong_facts": [None, None], "cap_len": [2, 1]}
    assert scores.skipped == {
        **dict.fromkeys(("ITM", "ITC"), "no scene of image 5"),
        **dict.fromkeys(chosen[2].metric_names, "ZeroDivisionError('division by zero')"),
        "wrong_facts": "undefined for these captions",
    }
    with raises_line(UserError, start="references has no entry for image 6: add one, or leave the"):
        score(captions, {5: ["a man on a horse"], 7: ["a cat"]}, chosen)
    monkeypatch.setattr(Broken, "evaluate", lambda *_: signals.raise_if_requested())
    monkeypatch.setattr(signals, "stop_requested", lambda: True)
    with pytest.raises(signals.Stopped):  # a request to stop is no failure of a metric
        score(captions, references, chosen)


def columns_of(**columns):
    return Scores({}, columns)


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.15])
def test_p_is_that_of_the_normal_approximation(shift):
    values = np.random.default_rng(1).normal(size=400)
    values += shift - values.mean()
    z = values.mean() / (values.std() / math.sqrt(400))
    expected = math.erfc(abs(z) / math.sqrt(2))
    assert scoring.p_value(values) == pytest.approx(expected, abs=0.03)


def test_pairs_see_what_two_intervals_do_not():
    random = np.random.default_rng(2)
    images = random.normal(50, 20, size=200)  # easy and hard ones, the same for both
    first, second = images + random.normal(0, 1, 200), images + 1 + random.normal(0, 1, 200)
    found = compare(columns_of(CIDEr=first), columns_of(CIDEr=second))["CIDEr"]
    assert found.difference == pytest.approx(second.mean() - first.mean())
    assert 0 < found.low < found.difference < found.high
    assert found.p == pytest.approx(1 / (1 + intervals.RESAMPLES)) and found.n == 200


def test_captions_without_a_value_are_left_out_and_scores_of_sets_have_no_interval():
    first = columns_of(PPL=[10.0, None, 30.0, 5.0], rank=[1, 2, 3, 4], ROUGE_L=[None] * 4)
    second = columns_of(rank=[1, 2, 3, 5], PPL=[11.0, 2.0, None, 6.0], ROUGE_L=[1.0] * 4)
    for scores, value in ((first, 0.4), (second, 1.0)):
        scores.metrics["lex_div"] = Estimate(value, n=4)
    found = compare(first, second)
    assert list(found) == ["lex_div", "PPL", "rank"]  # the table's order, then what has no column
    assert (found["PPL"].first, found["PPL"].second, found["PPL"].n) == (7.5, 8.5, 2)
    _, *lines, _ = scoring.format_comparison(found).splitlines()
    assert lines[0].split()[2:] == ["0.400", "1.000", "0.600"]
    assert lines[1].split()[:4] == ["PPL", "7.5", "8.5", "1.0"]
    same = columns_of(CIDEr=[1.0, 2.0, 0.0])
    assert compare(same, same)["CIDEr"] == Difference(1, 1, 0, 0, 0, 1, 3)
    single = compare(columns_of(CIDEr=[1.0]), columns_of(CIDEr=[2.0]))["CIDEr"]
    assert single == Difference(1, 2, 1, None, None, None, 1)


def test_the_second_takes_the_ids_and_the_order_of_the_first():
    assert list(scoring.same_images({2: "a", 1: "b"}, {"1": "", "2": "y"}).items()) == [
        (2, "y"),
        (1, ""),
    ]
    for others in ({1: "x"}, {1: "x", 2: "y", 3: "z"}):
        with raises_line(UserError, "has a caption in only one of the two files"):
            scoring.same_images({1: "a", 2: "b"}, others)


def test_the_interval_of_a_median_is_that_of_theory():
    found = median_estimate(np.random.default_rng(1).permutation(np.arange(1, 402)))
    half = 1.96 * 401 / (2 * np.sqrt(401))  # of a uniform distribution
    assert (found.value, found.n) == (201, 401)
    assert (201 - found.low, found.high - 201) == pytest.approx((half, half), rel=0.15)


def test_interval_of_a_ratio_is_that_of_naive_resampling():
    random = np.random.default_rng(2)
    below = random.integers(1, 9, 60)
    above = random.binomial(below, 0.3)
    estimate = ratio_estimate(above, below)
    assert estimate.value == above.sum() / below.sum()
    images = np.random.default_rng(3).integers(60, size=(20000, 60))
    low, high = np.percentile(above[images].sum(1) / below[images].sum(1), [2.5, 97.5])
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.07 * (high - low))


def test_ends_are_percentiles_of_whole_resamples():
    # Of two images half of the resamples hold both, and a quarter each of them twice.
    assert mean_estimate([0.0, 1.0]) == Estimate(0.5, 0.0, 1.0, 2)
    assert mean_estimate([4.0]) == Estimate(4.0, None, None, 1) == median_estimate([4.0])
    rare = mean_estimate([1.0] + [0.0] * 199)  # P(at most 3 times) = 0.981
    assert (rare.low, rare.high) == (0.0, 3 / 200)
    nothing = ratio_estimate([0, 0], [0, 0])
    assert math.isnan(nothing.value) and nothing.low is nothing.high is None
    # A quarter of the resamples hold the first image alone, and are left out.
    assert ratio_estimate([0, 3], [0, 6]) == Estimate(0.5, 0.5, 0.5, 2)
