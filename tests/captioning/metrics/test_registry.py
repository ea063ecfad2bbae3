"""Evaluators by name: what the registry and the classes declare."""

import pytest

from captioning.config import config_class
from captioning.metrics.evaluator import Evaluator, build_evaluators
from captioning.metrics.registry import COMPUTED, EVALUATORS, METRICS
from captioning.rewards.interface import Reward
from captioning.rewards.registry import REWARDS
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load

KINDS = {name: load(entry) for name, entry in EVALUATORS.items()}


def test_entries_declare_what_tables_and_configurations_need():
    assert sum(map(len, COMPUTED.values())) == len(METRICS)  # each name once
    assert all(kind.name == name for name, kind in KINDS.items())
    rewards = [load(entry) for entry in REWARDS.values()]
    assert all(issubclass(kind, Evaluator) for kind in KINDS.values())
    assert all(issubclass(kind, Reward) and kind.title for kind in rewards)
    for kind in (*KINDS.values(), *rewards):
        fields = kind.Options.model_fields
        assert set(kind.required) <= set(fields) <= set(config_class().model_fields)
        assert all(field.description for field in fields.values())


def test_each_is_built_once():
    chosen = build_evaluators(["length", "diversity", "length"])
    assert [type(evaluator).__name__ for evaluator in chosen] == ["Length", "Diversity"]
    assert type(build_evaluators()[0]).__name__ == "Coco"


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.required])
def test_a_metric_without_its_required_options_is_refused(name):
    expected = " and ".join(KINDS[name].required)
    with pytest.raises(UserError, match=f"^metrics: {name} needs {expected}: "):
        build_evaluators(["coco", name])


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.needs_images])
def test_a_metric_of_images_without_them_is_refused(name):
    with pytest.raises(UserError, match=f"^metrics: {name} needs the images: "):
        build_evaluators([name], clip_model="a model", itm_model="a file")


def test_an_impossible_option_is_one_line():
    with pytest.raises(
        UserError, match=r"^spice_timeout: found -1; input should be greater than 0"
    ):
        build_evaluators(["coco"], spice_timeout=-1)
