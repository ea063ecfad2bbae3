"""What metrics declare, how they are built, and sums of metrics."""

import math

import pytest

from captioning.captioners.registry import CAPTIONERS
from captioning.config import Config
from captioning.config.keys import Keys
from captioning.metrics import EVALUATORS
from captioning.metrics.base import Evaluator, Settings, all_metrics, build_evaluators
from captioning.metrics.metric_sum import MetricSum
from captioning.rewards.interface import Reward
from captioning.rewards.registry import REWARDS
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from tests.programs import raises_line

KINDS = {name: load(entry) for name, entry in EVALUATORS.items()}


def test_entries_declare_what_tables_and_configurations_need():
    names = [metric.name for kind in KINDS.values() for metric in kind.metrics]
    assert sorted(names) == sorted(all_metrics())  # each name once
    rewards = [load(entry) for entry in REWARDS.values()]
    assert all(issubclass(kind, Evaluator) for kind in KINDS.values())
    assert all(issubclass(kind, Reward) and kind.title for kind in rewards)
    packages = [load(package).Keys for package in set(CAPTIONERS.values())]
    keys = [name for keys in (Keys, *packages) for name in keys.model_fields]
    options = {}
    for kind in (*KINDS.values(), *rewards):
        assert set(kind.required) <= set(kind.options)
        for name, (_, field) in kind.options.items():
            assert field.description and options.setdefault(name, repr(field)) == repr(field)
    keys += options
    assert sorted(Config.model_fields) == sorted(keys)  # each key once


def test_english_metrics_have_no_score_in_another_language():
    names = {each.name for kind in KINDS.values() for each in kind.metrics if each.only_english}
    words = {"nouns", "adjectives", "numbers", "relations"}
    assert names == {"METEOR", "SPICE", "CHAIRs", "CHAIRi", "object_recall", *words}
    [evaluator] = build_evaluators(["coco", "coco"], Settings(language="zh"))
    assert evaluator.unavailable() == {"METEOR": "only for English, not for language: zh"}


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
    with raises_line(UserError, start=line):
        build_evaluators(["length", name], **options)


WRITTEN = "write it as METRIC, -METRIC or METRIC + METRIC"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CIDEr+Bleu_4", 1.2),
        (" Bleu_4 - PPL ", -79.7),
        ("-PPL", -80.0),
        ("+ CIDEr", 0.9),
        ("R@1 - PAC-S", 7.0),
        ("CIDEr + METEOR", None),  # which is missing
        ("CIDEr - wrong_facts", None),  # which is not finite
        ("CIDEr + BLEU_4", "'BLEU_4' is no metric; did you mean Bleu_4?"),
        ("perplexity", f"'perplexity' is no metric; there are {', '.join(all_metrics())}"),
        ("CIDEr - CIDEr", "CIDEr occurs twice"),
        *((text, WRITTEN) for text in ("CIDEr Bleu_4", "CIDEr +", "", "--PPL")),
    ],
)
def test_a_sum_has_the_values_of_its_metrics_or_is_none_or_one_line(text, expected):
    scores = {"CIDEr": 0.9, "Bleu_4": 0.3, "PPL": 80.0, "R@1": 10.0, "PAC-S": 3.0}
    if isinstance(expected, str):
        with raises_line(ValueError, start=expected):
            MetricSum.parse(text)
    else:
        found = MetricSum.parse(text).compute({**scores, "wrong_facts": math.nan})
        assert found == (expected if expected is None else pytest.approx(expected))


def test_a_sum_may_name_every_metric():
    first, *others = all_metrics()
    signs = {first: 1, **dict.fromkeys(others, -1)}
    assert MetricSum.parse(" - ".join(signs)).signs == signs
