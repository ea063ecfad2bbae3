"""A loss or gradient that is not finite ends a run with one line and unchanged weights."""

import math

import pytest
import torch

from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from tests.programs import raises_line


def failing(tuning):
    """Return the line with which a run ends."""
    with raises_line(UserError) as error:
        tuning.run()
    return str(error.value)


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(run, no_child_stays):
    """No worker process stays; the program could not end."""
    tuning = run("max_epoch=1", "num_workers=1")
    tuning.captioner.text_decoder.cls["predictions"].bias.data[3] = float("nan")
    before = tuning.captioner.visual_encoder.cls_token.clone()
    assert "not finite at step 1 (rank 0 had images" in failing(tuning)
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
    line = failing(tuning)
    assert f"the loss is not finite at step 1 (rank 0 had images {culprits})" in line


def test_a_gradient_that_is_not_finite_stops_too(run):
    """The gradient is summed over batches, so the images of all are named."""
    tuning = run("max_epoch=1", "accumulation_steps=2")
    parameter = tuning.captioner.visual_encoder.cls_token
    parameter.register_hook(lambda gradient: gradient * float("inf"))
    before = parameter.clone()
    line = failing(tuning)
    tuning.loader.set_epoch(0)
    images = [batch["image_id"] for batch in tuning.loader][:2]
    assert "the gradient is not finite at step 1" in line
    assert f"(rank 0 had images {images[0]}; rank 0 had images {images[1]})" in line
    assert torch.equal(parameter, before) and not list(tuning.folder.glob("checkpoint_*"))


@pytest.mark.parametrize("resume", ["auto", pytest.param("never", marks=pytest.mark.slow)])
def test_the_same_command_repeats_the_step(run, resume):
    """The learning rate is so large that the second step's loss is not finite."""
    settings = ["init_lr=1e30", "max_epoch=2", "accumulation_steps=1", "num_workers=2"]
    first = run(*settings, f"resume={resume}")
    line = failing(first)
    assert "the loss is not finite at step 2 (rank 0 had images" in line
    again = " with resume=auto" if resume == "never" else ""
    assert line.endswith(f"than fp32; the same command{again} repeats the step")

    (path,) = first.folder.glob("checkpoint_*.pth")
    assert path.name == "checkpoint_00_step00000001.pth"
    saved = checkpoints.read(path)
    torch.testing.assert_close(saved["model"], first.captioner.state_dict(), rtol=0, atol=0)
    assert saved["within"]["steps"] == 1 and saved["within"]["sums"]["tokens"] > 0
    assert failing(run(*settings)) == line.replace(again, "")


def test_a_first_step_of_an_epoch_is_repeated_from_the_end_of_the_one_before(run):
    settings = ["max_epoch=2", "metrics=[length]", "num_beams=1", "max_length=8"]
    first = run(*settings)
    save = first.state.save_epoch

    def and_break(folder, epoch):
        bias = first.captioner.text_decoder.cls["predictions"].bias.data.fill_(-3e38)
        bias[3] = 3e38  # the difference of two such logits overflows
        save(folder, epoch)

    first.state.save_epoch = and_break
    line = failing(first)
    assert "the loss is not finite at step 4 (rank 0 had" in line
    assert [path.name for path in checkpoints.saved(first.folder)] == ["checkpoint_00.pth"]
    assert failing(run(*settings)) == line


def test_where_no_checkpoint_can_be_written_the_line_says_so_too(run):
    tuning = run("init_lr=1e30", "max_epoch=1", "accumulation_steps=1")
    path = tuning.folder / "checkpoint_00_step00000001.pth"
    path.mkdir(parents=True)
    line = failing(tuning)
    assert "the loss is not finite at step 2 (rank 0 had images" in line
    assert f"cannot write {path}" in line
