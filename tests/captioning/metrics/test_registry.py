"""Evaluators by name: what the registry says is there, printed, and refused when incomplete."""

import pytest

from captioning.config import load_config
from captioning.metrics.evaluator import Evaluator, Settings
from captioning.metrics.registry import EVALUATORS, build_evaluators
from captioning.metrics.score_table import COLUMNS
from captioning.runtime.errors import UserError


def test_every_evaluator_is_one_and_its_metrics_have_a_column(tmp_path):
    names = []
    for kind in EVALUATORS.values():
        assert issubclass(kind, Evaluator)
        names += getattr(kind, "names", ())
    (tmp_path / "train.json").write_text('{"1": ["a cat"]}')
    settings = Settings(spice=True, train_captions=tmp_path / "train.json")
    coco, diversity = build_evaluators(["coco", "diversity"], settings)
    assert sorted({*names, *coco.names, *diversity.names}) == sorted(COLUMNS)
    for evaluator in (coco, diversity):
        assert set(evaluator.reference_metrics) <= set(evaluator.names)


def test_each_is_built_once():
    chosen = build_evaluators(["length", "diversity", "length"])
    assert [type(evaluator).__name__ for evaluator in chosen] == ["Length", "Diversity"]
    assert type(build_evaluators()[0]).__name__ == "Coco"


def test_facts_need_their_file():
    with pytest.raises(UserError, match="facts needs facts_file"):
        build_evaluators(["coco", "facts"])


def test_names_in_a_configuration(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("image_root: a\nann_root: b\n")
    assert load_config(path).metrics == ["coco", "length", "diversity"]
    assert load_config(path, ["metrics=[length, facts]"]).metrics == ["length", "facts"]
    for wrong in ("[coco, cider]", "[]", "coco"):
        with pytest.raises(UserError, match="metrics: found"):
            load_config(path, [f"metrics={wrong}"])
