"""float16 on a CPU, which torch computes as a GPU does: overflow, underflow, and where it stops."""

import copy
import math

import pytest
import torch

from captioning.runtime.errors import UserError
from tests.programs import raises_line
from tests.tiny import log_of

GIVEN = ["max_epoch=1", "log_every=1"]


def scaled(tuning, scale, at=0, also=lambda step: None):
    """Return the run, with another loss scale from a step on, after which `also` is called."""

    def set_scale(step, batches, number):
        if number == at:
            step.scaler.load_state_dict({**step.scaler.state_dict(), "scale": scale})
            also(step)

    tuning.before_step = set_scale
    return tuning


@pytest.mark.parametrize("clip", ["clip_grad_norm=0.1", "clip_grad_value=0.1"])
def test_an_overflow_costs_a_step_and_nothing_else(run, clip):
    given = ["precision=fp16", "lr_schedule=exponential", clip]
    before = copy.deepcopy(run(*given).set_up().captioner.state_dict())
    tuning = scaled(run(*given), 2.0**60).run()
    torch.testing.assert_close(tuning.captioner.state_dict(), before, rtol=0, atol=0)
    moments = [v for state in tuning.step.optimizer.state.values() for v in state.values()]
    assert moments and not any(value.any() for value in moments)
    assert tuning.step.scaler.get_scale() == 2.0**57
    lines = log_of(tuning.folder, "step")
    assert len(lines) == 3
    assert all(math.isfinite(line["loss"]) and "grad_norm" not in line for line in lines)
    tuning = scaled(run(*given, "max_epoch=2"), 2.0**10, at=3).run()
    assert all(line["grad_norm"] > 0 for line in log_of(tuning.folder, "step")[3:])
    moved = tuning.captioner.state_dict()
    assert any(not torch.equal(moved[name], before[name]) for name in before)


def test_an_overflow_that_scaling_does_not_cause_stops_the_run(run):
    """Otherwise every step would be skipped."""
    before = {}

    def break_gradient(step):
        before.update(copy.deepcopy(step.learner.state_dict()))
        parameter = step.learner.visual_encoder.cls_token
        parameter.register_hook(lambda gradient: gradient * float("nan"))

    tuning = scaled(run("precision=fp16"), 4.0, also=break_gradient)
    start = "the gradient is not finite at step 3"
    with raises_line(UserError, "another precision than fp16", start=start):
        tuning.run()
    torch.testing.assert_close(tuning.captioner.state_dict(), before, rtol=0, atol=0)
    assert tuning.step.scaler.get_scale() == 1 and len(log_of(tuning.folder, "step")) == 2
