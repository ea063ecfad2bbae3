"""What metrics declare, how they are computed together, and the table and sums of their scores."""

import math

import pytest

from captioning.config import config_class
from captioning.metrics import EVALUATORS, diversity
from captioning.metrics.base import Evaluator, Scores, all_metrics, build_evaluators
from captioning.metrics.intervals import Estimate
from captioning.metrics.metric_sum import MetricSum
from captioning.metrics.scoring import format_table, score
from captioning.rewards.interface import Reward
from captioning.rewards.registry import REWARDS
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load

KINDS = {name: load(entry) for name, entry in EVALUATORS.items()}


def test_entries_declare_what_tables_and_configurations_need():
    names = [name for kind in KINDS.values() for name in (metric.name for metric in kind.metrics)]
    assert sorted(names) == sorted(all_metrics())  # each name once
    rewards = [load(entry) for entry in REWARDS.values()]
    assert all(issubclass(kind, Evaluator) for kind in KINDS.values())
    assert all(issubclass(kind, Reward) and kind.title for kind in rewards)
    for kind in (*KINDS.values(), *rewards):
        assert set(kind.required) <= set(kind.options) <= set(config_class().model_fields)
        assert all(field.description for _, field in kind.options.values())


def test_an_evaluator_that_is_named_twice_is_built_once():
    chosen = build_evaluators(["length", "diversity", "length"])
    assert list(map(type, chosen)) == [KINDS["length"], KINDS["diversity"]]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("coco", {"spice_timeout": -1}, "spice_timeout: found -1; input should be greater than 0"),
        *(
            (name, {}, f"metrics: {name} needs {' and '.join(kind.required)}: ")
            for name, kind in KINDS.items()
            if kind.required
        ),
        *(
            (name, dict.fromkeys(kind.required, "a"), f"metrics: {name} needs the images: ")
            for name, kind in KINDS.items()
            if kind.needs_images
        ),
    ],
)
def test_an_option_or_images_that_are_missing_or_impossible_are_refused(name, options, line):
    with pytest.raises(UserError, match=f"^{line}"):
        build_evaluators(["length", name], **options)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("CIDEr", 0.9),
        ("CIDEr+Bleu_4", 1.2),
        (" Bleu_4 - PPL ", -79.7),
        ("-PPL", -80.0),
        ("+ CIDEr", 0.9),
        ("R@1", 10.0),
        ("CIDEr + METEOR", None),  # which is missing
        ("CIDEr - wrong_facts", None),  # which is not finite
    ],
)
def test_a_sum_has_the_values_of_its_metrics_or_is_none(text, value):
    scores = {"CIDEr": 0.9, "Bleu_4": 0.3, "PPL": 80.0, "R@1": 10.0, "wrong_facts": math.nan}
    found = MetricSum.parse(text).of(scores)
    assert found == (value if value is None else pytest.approx(value))


def test_a_sum_may_name_every_metric():
    text = " - ".join(all_metrics())
    first, *others = all_metrics()
    assert MetricSum.parse(text).signs == {first: 1, **dict.fromkeys(others, -1)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CIDEr + BLEU_4", "'BLEU_4' is no metric; did you mean Bleu_4?"),
        ("perplexity", f"'perplexity' is no metric; there are {', '.join(all_metrics())}"),
        ("CIDEr - CIDEr", "CIDEr occurs twice"),
        *(
            (text, "write it as METRIC, -METRIC or METRIC + METRIC")
            for text in ("CIDEr Bleu_4", "CIDEr +", "", "--PPL")
        ),
    ],
)
def test_a_sum_of_metrics_that_cannot_be_read_is_one_line(text, message):
    with pytest.raises(ValueError) as error:
        MetricSum.parse(text)
    assert str(error.value) == message


def test_the_table_has_the_published_order_intervals_skipped_metrics_and_a_remark():
    metrics = {
        "CIDEr": Estimate(12.5, 11.0, 14.1, 1),
        "METEOR": Estimate(0.1954, 0.19, 0.21, 1),
        "lex_div": Estimate(0.292, None, None, 1),
        "cap_len": Estimate(9.893, 9.75, 10.04, 1),
    }
    skipped = {"SPICE": "it broke", "ROUGE_L": "it broke", "Bleu_1": "no words"}
    scores = Scores(metrics, {}, {"tokenizer": "PTBTokenizer", "empty": 0, "seed": 7}, skipped)
    remark = (
        "CIDEr weights words by how rare they are in the references of these 99 captions, too few "
        "for comparisons: give --cider_df"
    )
    assert format_table(scores, 99).splitlines() == [
        "Cap. Len.    9.89   ±0.14",
        "Lex. Div.   0.292",
        "BLEU-1          -",
        "METEOR      0.195  ±0.010",
        "ROUGE-L         -",
        "CIDEr      12.500  ±1.550",
        "SPICE           -",
        "±: half of the 95 % interval over images",
        "99 captions, tokenizer: PTBTokenizer, seed: 7",
        remark,
        "BLEU-1 skipped: no words",
        "ROUGE-L, SPICE skipped: it broke",
    ]
    assert remark not in format_table(scores, 100)
    scores.settings["cider_df"] = "coco.json"
    assert remark not in format_table(scores, 99)


def test_a_table_without_intervals_or_scores():
    assert (
        format_table(Scores({"ttr": Estimate(0.5, None, None, 2)}), 2) == "TTR  0.500\n2 captions"
    )
    assert format_table(Scores(), 2) == "2 captions"


pytestmark = pytest.mark.usefixtures("no_java")  # whose start takes seconds


def test_score_takes_results_or_a_mapping():
    references = {5: ["a man on a horse"], 6: ["a cat"]}
    results = [{"image_id": 5, "caption": "a man"}, {"image_id": 6, "caption": "a cat"}]
    scores = score(results, references)
    assert scores == score({5: "a man", 6: "a cat"}, references)
    assert scores == score(results, {str(i): group for i, group in references.items()})
    assert scores.per_caption["ROUGE_L"][1] == 1.0
    with pytest.raises(UserError, match="nothing to score"):
        score({}, references)


class Broken(Evaluator):
    metrics = KINDS["itm"].metrics

    def evaluate(self, captions):
        raise UserError("no scene of image 5")


class Undefined(Evaluator):
    metrics = KINDS["facts"].metrics

    def evaluate(self, captions):
        nothing = Estimate(float("nan"), None, None, 2)
        return Scores({"wrong_facts": nothing}, {"wrong_facts": [None, None]}, {"scenes": 2})


def test_an_evaluator_that_fails_loses_no_other(monkeypatch):
    monkeypatch.setattr(diversity, "zip", lambda *_: 1 / 0, raising=False)
    own = [Broken(None, None), Undefined(None, None)]
    chosen = [*own, *build_evaluators(["diversity", "length"])]
    scores = score({5: "a man", 6: "a"}, {5: ["a"], 6: ["b"]}, chosen)
    assert list(scores.metrics) == ["cap_len"] and scores.settings == {"scenes": 2}
    assert scores.per_caption == {"wrong_facts": [None, None], "cap_len": [2, 1]}
    assert "undefined" in scores.skipped.pop("wrong_facts")
    assert scores.skipped == {
        **dict.fromkeys(("ITM", "ITC"), "no scene of image 5"),
        **dict.fromkeys(chosen[2].metric_names, "ZeroDivisionError('division by zero')"),
    }
