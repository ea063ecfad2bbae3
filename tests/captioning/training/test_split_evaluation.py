"""The metrics of a split get what they need, and say what is missing before captions are made."""

import pytest
import torch

from captioning.config import load_config
from captioning.runtime.errors import UserError
from captioning.training.validation import SplitEvaluation
from tests.programs import raises_line


@pytest.fixture
def evaluation(scenes, scenes_config):
    """Return a function that sets up the evaluation of the validation split."""

    def make(*overrides):
        config = load_config(scenes_config, overrides)
        return SplitEvaluation(config, "val", scenes, torch.device("cpu"))

    return make


def test_models_are_told_of_images_device_and_pool(evaluation, scenes, tmp_path):
    (tmp_path / "pool.txt").write_text("7.png")
    given = ("metrics=[retrieval]", "clip_model=some/model")
    for pool, count in ((tmp_path / "pool.txt", 1), ("train", 24), ("val", 5)):
        [evaluator] = evaluation(*given, f"pool={pool}").evaluators
        assert len(evaluator.files) == count
    settings = evaluator.settings
    assert [*settings.images.values()] == evaluator.files and evaluator.files[0].exists()
    assert evaluator.config.clip_model == "some/model" and settings.device == "cpu"
    with raises_line(UserError, "pool: test holds no images: give a folder"):
        evaluation(*given, "val_file=", "test_file=", "split={val: 0.5}", "pool=test")


def test_what_is_missing_is_said_before_captions_are_made(evaluation, scenes, capsys, no_java):
    evaluation("metrics=[coco]")
    assert "METEOR will be skipped: no Java" in capsys.readouterr().err
    for facts, line in (([], "facts needs facts_file"), (["facts_file=a"], f"{scenes}/a: no such")):
        with raises_line(UserError, line):
            evaluation("metrics=[length, facts]", *facts)
