"""float16 on a CPU, which torch computes as a GPU does: overflow, underflow, and where it stops."""

import copy
import math

import pytest
import torch

from captioning.runtime.errors import UserError
from tests.captioning.training.conftest import first_gradient, without_dropout
from tests.programs import raises_line
from tests.tiny import log_of

GIVEN = ["max_epoch=1", "log_every=1"]


def set_scale(tuning, scale):
    tuning.state.scaler.load_state_dict({**tuning.state.scaler.state_dict(), "scale": scale})


@pytest.mark.parametrize("clip", ["log_every=1", "clip_grad_norm=0.1", "clip_grad_value=0.1"])
def test_an_overflow_costs_a_step_and_nothing_else(run, clip):
    tuning = run("precision=fp16", "max_epoch=2", clip)
    set_scale(tuning, 2.0**60)
    before = copy.deepcopy(tuning.captioner.state_dict())
    tuning._train_epoch(0)
    torch.testing.assert_close(tuning.captioner.state_dict(), before, rtol=0, atol=0)
    moments = [value for state in tuning.optimizer.state.values() for value in state.values()]
    assert moments and not any(value.any() for value in moments)
    assert tuning.state.scaler.get_scale() == 2.0**57
    lines = log_of(tuning.folder, "step")
    assert len(lines) == 3
    assert all(math.isfinite(line["loss"]) and "grad_norm" not in line for line in lines)
    set_scale(tuning, 2.0**10)
    tuning._train_epoch(1)
    assert tuning.state.scaler.get_scale() == 2.0**10
    assert all(line["grad_norm"] > 0 for line in log_of(tuning.folder, "step")[3:])
    moved = tuning.captioner.state_dict()
    assert any(not torch.equal(moved[name], before[name]) for name in before)


def test_an_overflow_that_scaling_does_not_cause_stops_the_run(run):
    """Otherwise every step would be skipped."""
    tuning = run("precision=fp16")
    set_scale(tuning, 4.0)
    before = copy.deepcopy(tuning.captioner.state_dict())
    parameter = tuning.captioner.visual_encoder.cls_token
    parameter.register_hook(lambda gradient: gradient * float("nan"))
    with raises_line(
        UserError, "another precision than fp16", start="the gradient is not finite at step 3"
    ):
        tuning.run()
    torch.testing.assert_close(tuning.captioner.state_dict(), before, rtol=0, atol=0)
    assert tuning.state.scaler.get_scale() == 1 and len(log_of(tuning.folder, "step")) == 2


def test_an_overflow_in_forward_stops_the_run(run):
    """A value is too large for float16, whatever the loss scale."""
    tuning = run("precision=fp16")
    tuning.captioner.visual_encoder.patch_embed.proj.weight.data.mul_(1e6)
    with pytest.raises(UserError, match="the loss is not finite at step 1"):
        tuning.run()


def test_small_gradients_survive_by_scaling(run):
    """Weighted by 1e-4, they are too small for float16; scaled, they equal those of float32."""
    faint = ["objective={mle: 1e-4}", "resume=never"]
    full = first_gradient(without_dropout(run(*faint)))
    scaled = first_gradient(without_dropout(run(*faint, "precision=fp16")))
    unscaled = without_dropout(run(*faint, "precision=fp16"))
    set_scale(unscaled, 2.0**-4)
    lost = first_gradient(unscaled)
    name = "visual_encoder.blocks.0.mlp.fc1.weight"
    size = full[name].norm()
    assert (scaled[name] - full[name]).norm() < 0.1 * size
    assert (lost[name] - full[name]).norm() > 0.5 * size
