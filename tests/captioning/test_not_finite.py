"""A loss or a gradient that is not finite ends a run in one line, its weights as they were."""

import math

import pytest
import torch

from captioning.config import load_config
from captioning.errors import UserError
from captioning.recipe import FineTuning


@pytest.fixture
def run(scenes_config, tmp_path):
    """Return a function that sets up a run with overrides, in a folder of the test."""

    def make(*overrides):
        flags = {"output_dir": str(tmp_path / "run")}
        return FineTuning(load_config(scenes_config, overrides, flags), torch.device("cpu"))

    return make


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(run):
    tuning = run("max_epoch=1")
    tuning.captioner.text_decoder.cls["predictions"].bias.data[3] = float("nan")
    before = tuning.captioner.visual_encoder.cls_token.clone()
    with pytest.raises(UserError, match=r"not finite at step 1 \(rank 0 had images") as error:
        tuning.run()
    assert "\n" not in str(error.value)
    assert torch.equal(tuning.captioner.visual_encoder.cls_token, before)
    assert not list(tuning.folder.glob("checkpoint_*"))


def test_of_accumulated_batches_the_one_whose_loss_failed_is_named(run, monkeypatch):
    tuning = run("accumulation_steps=3", "max_epoch=1")
    tuning.loader.set_epoch(0)
    culprits = list(tuning.loader)[1]["image_id"]
    forward, calls = tuning.captioner.forward, []

    def fail_second(*arguments):
        output = forward(*arguments)
        calls.append(output)
        return output._replace(loss=output.loss * math.inf) if len(calls) == 2 else output

    monkeypatch.setattr(tuning.captioner, "forward", fail_second)
    with pytest.raises(UserError, match="the loss is not finite at step 1") as error:
        tuning.run()
    assert f"had images {culprits}" in str(error.value)


def test_a_gradient_that_is_not_finite_stops_too(run):
    tuning = run("max_epoch=1")
    parameter = tuning.captioner.visual_encoder.cls_token
    parameter.register_hook(lambda gradient: gradient * float("inf"))
    before = parameter.clone()
    with pytest.raises(UserError, match="the gradient is not finite at step 1"):
        tuning.run()
    assert torch.equal(parameter, before) and not list(tuning.folder.glob("checkpoint_*"))
