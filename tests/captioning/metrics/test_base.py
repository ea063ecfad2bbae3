"""What metrics declare, how they are built, and sums of metrics."""

import math

import pytest

from captioning.captioners.registry import CAPTIONERS
from captioning.config import Config, config_class
from captioning.metrics import EVALUATORS
from captioning.metrics.base import Evaluator, Settings, all_metrics, build_evaluators
from captioning.metrics.metric_sum import MetricSum
from captioning.rewards.interface import Reward
from captioning.rewards.registry import REWARDS
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load

KINDS = {name: load(entry) for name, entry in EVALUATORS.items()}
ZH = Settings(language="zh")


def test_entries_declare_what_tables_and_configurations_need():
    names = [metric.name for kind in KINDS.values() for metric in kind.metrics]
    assert sorted(names) == sorted(all_metrics())  # each name once
    rewards = [load(entry) for entry in REWARDS.values()]
    assert all(issubclass(kind, Evaluator) for kind in KINDS.values())
    assert all(issubclass(kind, Reward) and kind.title for kind in rewards)
    packages = [load(package).Keys for package in set(CAPTIONERS.values())]
    keys = [name for keys in (Config, *packages) for name in keys.model_fields]
    options = {}
    for kind in (*KINDS.values(), *rewards):
        assert set(kind.required) <= set(kind.options)
        for name, (_, field) in kind.options.items():
            assert field.description and options.setdefault(name, repr(field)) == repr(field)
    keys += options
    assert sorted(config_class().model_fields) == sorted(keys)  # each key once


def test_an_evaluator_that_is_named_twice_is_built_once():
    chosen = build_evaluators(["length", "diversity", "length"])
    assert list(map(type, chosen)) == [KINDS["length"], KINDS["diversity"]]


def test_english_metrics_have_no_score_in_another_language():
    names = {each.name for kind in KINDS.values() for each in kind.metrics if each.only_english}
    objects, words = {"CHAIRs", "CHAIRi", "object_recall"}, set(KINDS["detail"](None, ZH).skipped())
    assert names == {"METEOR", "SPICE", *objects, *words} and len(words) == 4
    [evaluator] = build_evaluators(["coco"], ZH)
    reason = "only for English, not for language: zh"
    assert evaluator.unavailable() == evaluator.skipped() == {"METEOR": reason}


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("coco", {"spice_timeout": -1}, "spice_timeout: found -1. Input should be greater than 0"),
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
    found = MetricSum.parse(text).compute(scores)
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
