"""A loss or gradient that is not finite ends a run with one line and unchanged weights."""

import math

import pytest
import torch

from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.training.checkpointing import Checkpointing
from captioning.training.step import TrainingStep
from tests.programs import raises_line

UNTIL_STEP_2 = ["init_lr=1e30", "max_epoch=2", "num_workers=2"]  # its loss is not finite


def failing(tuning):
    """Return the line with which a run ends."""
    with raises_line(UserError) as error:
        tuning.run()
    return str(error.value)


def bad_loss(step):
    step.learner.text_decoder.cls["predictions"].bias.data[3] = float("nan")


def bad_gradient(step):
    parameter = step.learner.visual_encoder.cls_token
    parameter.register_hook(lambda gradient: gradient * float("inf"))


@pytest.mark.parametrize("spoil", [bad_loss, bad_gradient])
def test_it_stops_before_the_weights_change(run, no_child_stays, spoil):
    """A gradient is summed over batches, so the images of all are named. No worker stays."""
    tuning, before = run("max_epoch=1", "accumulation_steps=2", "num_workers=1"), []

    def spoil_first(step, *_):
        spoil(step)
        before.append(step.learner.visual_encoder.cls_token.clone())

    tuning.before_step = spoil_first
    line = failing(tuning)
    one, two = [batch["image_id"] for batch in tuning.batches()][:2]
    what = "loss" if spoil is bad_loss else "gradient"
    ranks = f"(rank 0 had images {one}; rank 0 had images {two})"
    assert f"the {what} is not finite at step 1 {ranks}" in line
    assert torch.equal(tuning.captioner.visual_encoder.cls_token, before[0])
    assert not list(tuning.folder.glob("checkpoint_*"))
    no_child_stays()


def test_of_accumulated_batches_the_one_whose_loss_failed_is_named(run, monkeypatch):
    tuning = run("accumulation_steps=3", "max_epoch=1")
    culprits, calls = tuning.batches()[1]["image_id"], []
    forward = TrainingStep._forward

    def fail_second(*arguments):
        output = forward(*arguments)
        calls.append(output)
        if len(calls) != 2:
            return output
        arguments[0].batches[-1][1]["loss"] *= math.inf
        return output._replace(loss=output.loss * math.inf)

    monkeypatch.setattr(TrainingStep, "_forward", fail_second)
    line = f"the loss is not finite at step 1 (rank 0 had images {culprits})"
    assert line in failing(tuning)


def test_the_same_command_repeats_the_step(run):
    first = run(*UNTIL_STEP_2)
    line = failing(first)
    assert "the loss is not finite at step 2 (rank 0 had images" in line
    assert line.endswith("than fp32; the same command repeats the step")
    (path,) = first.folder.glob("checkpoint_*.pth")
    assert path.name == "checkpoint_00_step00000001.pth"
    saved = checkpoints.read(path)
    torch.testing.assert_close(saved["model"], first.captioner.state_dict(), rtol=0, atol=0)
    assert saved["within"]["steps"] == 1 and saved["within"]["sums"]["tokens"] > 0
    assert failing(run(*UNTIL_STEP_2)) == line


def test_a_first_step_of_an_epoch_is_repeated_from_the_end_of_the_one_before(run, monkeypatch):
    settings = ["max_epoch=2", "metrics=[length]", "num_beams=1", "max_length=8"]
    first, save = run(*settings), Checkpointing.save

    def and_break(self, progress):
        bias = self.captioner.text_decoder.cls["predictions"].bias.data.fill_(-3e38)
        bias[3] = 3e38  # the difference of two such logits overflows
        save(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointing, "save", and_break)
        line = failing(first)
    assert "the loss is not finite at step 4 (rank 0 had" in line
    assert [path.name for path in checkpoints.saved(first.folder)] == ["checkpoint_00.pth"]
    assert failing(run(*settings)) == line
