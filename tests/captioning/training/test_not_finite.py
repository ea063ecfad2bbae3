"""A loss or a gradient that is not finite ends a run in one line, its weights as they were.

What is needed to look into it is kept, and the step can be repeated.
"""

import json
import math

import pytest
import torch

from captioning.config import load_config
from captioning.data.randomness import derived_seed
from captioning.files.manifest import verify
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.training.fine_tuning import FineTuning


@pytest.fixture
def run(scenes_config, tmp_path):
    """Return a function that sets up a run with overrides, in a folder of the test."""

    def make(*overrides, folder=None):
        flags = {"output_dir": str(folder or tmp_path / "run")}
        return FineTuning(load_config(scenes_config, overrides, flags), torch.device("cpu"))

    return make


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(run, no_child_stays):
    """And no worker stays, whoever holds the error: the program could not end."""
    tuning = run("max_epoch=1", "num_workers=1")
    tuning.captioner.text_decoder.cls["predictions"].bias.data[3] = float("nan")
    before = tuning.captioner.visual_encoder.cls_token.clone()
    with pytest.raises(UserError, match=r"not finite at step 1 \(rank 0 had images") as error:
        tuning.run()
    assert "\n" not in str(error.value)
    assert torch.equal(tuning.captioner.visual_encoder.cls_token, before)
    assert not list(tuning.folder.glob("checkpoint_*"))
    no_child_stays()


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


def failing(tuning):
    """The line with which a run ends."""
    with pytest.raises(UserError) as error:
        tuning.run()
    return str(error.value)


def reported(folder):
    return json.loads((folder / "not_finite.json").read_text())


def test_the_step_is_kept_and_repeats_itself(run):
    """Weights that a learning rate has blown up: the loss of the second step is not a number."""
    settings = ["init_lr=1e30", "max_epoch=2", "accumulation_steps=1", "num_workers=2"]
    first = run(*settings)
    line = failing(first)
    folder = first.folder / "not_finite_step00000002"
    assert "the loss is not finite at step 2 (rank 0 had images" in line
    assert f"{folder / 'not_finite.json'} tells more, and output_dir={folder} repeats" in line
    assert "\n" not in line and not list(first.folder.glob("checkpoint_*"))

    report = reported(folder)
    assert [report[key] for key in ("what", "step", "epoch", "loss_scale")] == ["loss", 2, 0, None]
    (batch,) = report["ranks"][0]
    first.loader.set_epoch(0)
    expected = list(first.loader)[1]
    assert batch["image_ids"] == expected["image_id"] and batch["captions"] == expected["captions"]
    assert batch["indices"] == expected["index"] and f"had images {batch['image_ids']}" in line
    assert batch["seed"] == derived_seed("step", 42, 1, 0)
    assert batch["parts"].keys() == {"loss", "mle", "smile"} and batch["parts"]["loss"] == "nan"
    assert batch["again"]["parts"] == batch["parts"]
    assert set(batch["again"]["gradients"]) <= {n for n, _ in first.captioner.named_parameters()}
    assert batch["again"]["gradients"] == report["gradients"] != []
    assert report["config"] == first.config.model_dump()

    path = folder / "checkpoint_00_step00000001.pth"
    verify(path)
    saved = checkpoints.read(path)
    torch.testing.assert_close(saved["model"], first.captioner.state_dict(), rtol=0, atol=0)
    assert saved["within"]["steps"] == 1 and saved["within"]["sums"]["tokens"] > 0

    second = run(*settings, folder=folder)
    line = failing(second)
    nested = folder / folder.name
    assert "the same command repeats the step" in line and "at step 2 (rank 0 had" in line
    assert not list(nested.glob("*.pth"))  # it began with that very checkpoint
    repeated = reported(nested)
    assert repeated.pop("config").keys() == report.pop("config").keys()
    assert repeated == report


def test_a_first_step_of_an_epoch_repeats_without_scoring_the_one_before(run):
    settings = ["max_epoch=2", "metrics=[length]", "num_beams=1", "max_length=8"]
    first = run(*settings)
    save = first.state.save_epoch

    def and_break(folder, epoch):
        save(folder, epoch)
        # Of several tokens' losses of that size the sum overflows.
        first.captioner.text_decoder.cls["predictions"].bias.data[3] = 3e38

    first.state.save_epoch = and_break
    failing(first)
    folder = first.folder / "not_finite_step00000004"
    second = run(*settings, folder=folder)
    assert "the loss is not finite at step 4 (rank 0 had" in failing(second)
    assert not (folder / "result").exists()
    assert reported(folder)["ranks"] == reported(folder / folder.name)["ranks"]


def test_a_failure_that_does_not_repeat_is_told(run, monkeypatch):
    tuning = run("max_epoch=1")
    backward, calls = torch.Tensor.backward, []

    def fail_once(loss):
        backward(loss)
        calls.append(loss)
        if len(calls) == 1:
            tuning.captioner.visual_encoder.cls_token.grad[0] = float("nan")

    monkeypatch.setattr(torch.Tensor, "backward", fail_once)
    line = failing(tuning)
    assert "the gradient is not finite at step 1 (on no rank by itself; the images were" in line
    report = reported(tuning.folder / "not_finite_step00000001")
    assert report["gradients"] == ["visual_encoder.cls_token"]
    (batch,) = report["ranks"][0]
    assert batch["again"] == {"parts": batch["parts"], "gradients": []}


def test_where_nothing_can_be_kept_the_line_says_so_too(run):
    tuning = run("max_epoch=1")
    tuning.captioner.text_decoder.cls["predictions"].bias.data[3] = float("nan")
    tuning.folder.mkdir(exist_ok=True)
    folder = tuning.folder / "not_finite_step00000001"
    folder.write_text("in the way")
    line = failing(tuning)
    assert "the loss is not finite at step 1 (rank 0 had images" in line
    assert f"cannot write {folder}" in line and folder.read_text() == "in the way"
