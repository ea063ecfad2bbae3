"""Sums of metrics by which epochs are compared."""

import math

import pytest

from captioning.metrics.metric_sum import MetricSum
from captioning.metrics.registry import METRICS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("CIDEr", 0.9),
        ("CIDEr + Bleu_4", 1.2),
        ("CIDEr+Bleu_4", 1.2),
        (" Bleu_4 - PPL ", -79.7),
        ("-PPL", -80.0),
        ("+ CIDEr", 0.9),
        ("R@1", 10.0),
        ("CIDEr + METEOR", None),  # which is missing
        ("CIDEr - wrong_facts", None),  # which is not finite
    ],
)
def test_the_higher_the_better(text, value):
    scores = {"CIDEr": 0.9, "Bleu_4": 0.3, "PPL": 80.0, "R@1": 10.0, "wrong_facts": math.nan}
    found = MetricSum.parse(text).of(scores)
    assert found == (value if value is None else pytest.approx(value))


def test_every_metric_can_be_named():
    text = " - ".join(METRICS)
    first, *others = METRICS
    assert MetricSum.parse(text).signs == {first: 1, **dict.fromkeys(others, -1)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cider", "'cider' is no metric; did you mean CIDEr?"),
        ("CIDEr + BLEU_4", "'BLEU_4' is no metric; did you mean Bleu_4?"),
        ("perplexity", f"'perplexity' is no metric; there are {', '.join(METRICS)}"),
        ("CIDEr Bleu_4", "write it as METRIC, -METRIC or METRIC + METRIC"),
        ("CIDEr +", "write it as METRIC, -METRIC or METRIC + METRIC"),
        ("", "write it as METRIC, -METRIC or METRIC + METRIC"),
        ("--PPL", "write it as METRIC, -METRIC or METRIC + METRIC"),
        ("CIDEr - CIDEr", "CIDEr occurs twice"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(ValueError) as error:
        MetricSum.parse(text)
    assert str(error.value) == message
