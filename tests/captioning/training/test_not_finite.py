"""A loss or gradient that is not finite ends a run with one line and unchanged weights."""

import pytest
import torch

from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from tests.programs import raises_line


def failing(tuning):
    with raises_line(UserError) as error:
        tuning.run()
    return str(error.value)


@pytest.mark.parametrize("part", ["loss", "gradient"])
def test_it_stops_before_the_weights_change(run, no_child_stays, part):
    """A loss is of one batch, and a gradient of all that are accumulated. No worker stays."""
    tuning, before = run("max_epoch=1", "accumulation_steps=2", "num_workers=1"), []

    def spoil(step, batches, number):
        token = step.learner.visual_encoder.cls_token
        before.append(token.clone())
        if part == "gradient":
            token.register_hook(lambda gradient: gradient * float("inf"))
            return None
        first, second = next(batches), next(batches)
        return iter([first, {**second, "image": second["image"] * float("nan")}])

    tuning.before_step = spoil
    line = failing(tuning)
    named = [f"rank 0 had images {batch['image_id']}" for batch in tuning.batches()[:2]]
    named = "; ".join(named[part == "loss" :])
    assert f"the {part} is not finite at step 1 ({named}); lower init_lr" in line
    assert torch.equal(tuning.captioner.visual_encoder.cls_token, before[0])
    assert not list(tuning.folder.glob("checkpoint_*"))
    no_child_stays()


@pytest.mark.parametrize("step", [2, 4])
def test_the_same_command_repeats_the_step(run, step):
    """From a checkpoint within the epoch, or from the end of the epoch before."""
    settings = ["max_epoch=2", "num_workers=2", "metrics=[length]", "max_length=8"]
    first = run(*settings)

    def spoil(training, batches, number):
        if number == step - 2:  # the weights after this step have an infinite loss
            training.optimizer.register_step_post_hook(spoil_weights)

    def spoil_weights(optimizer, *_):
        bias = first.captioner.text_decoder.cls["predictions"].bias.data.fill_(-3e38)
        bias[3] = 3e38  # the difference of two such logits overflows

    first.before_step = spoil
    line = failing(first)
    assert f"the loss is not finite at step {step} (rank 0 had images" in line
    assert line.endswith("than fp32; the same command repeats the step")
    (path,) = checkpoints.saved(first.folder)
    assert path.stem == {2: "checkpoint_00_step00000001", 4: "checkpoint_00"}[step]
    saved = checkpoints.read(path)
    torch.testing.assert_close(saved["model"], first.captioner.state_dict(), rtol=0, atol=0)
    assert failing(run(*settings)) == line
