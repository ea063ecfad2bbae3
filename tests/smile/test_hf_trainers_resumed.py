"""A trainer goes on from its checkpoint with what the objective has seen."""

import pytest
import torch

from smile import Objective
from tests.smile.trainer_parts import SmileSFTTrainer, SmileTrainer, found, llama, logs, make

WINDOW = {"mle": 0.1, "truncation": {"weight": 0.9, "drop": 0.5, "window": 6}}
STEPS = {"max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 0.01}
SAVED = {"save_strategy": "steps", "save_steps": 2, "ignore_data_skip": False}


BOTH = pytest.mark.parametrize("cls", [SmileTrainer, SmileSFTTrainer])


@BOTH
def test_an_objective_without_state_goes_on_as_the_undisturbed_run(cls, tmp_path):
    whole = make(cls, tmp_path, **STEPS, **SAVED)
    whole.train()
    other = llama(initializer_range=0.5)
    resumed = make(cls, tmp_path, model=other, **STEPS, **SAVED)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())
    assert logs(resumed)[-1]["loss"] == logs(whole)[-1]["loss"]


@BOTH
def test_the_window_of_truncation_is_that_of_the_undisturbed_run(cls, tmp_path):
    whole = make(cls, tmp_path, objective=Objective(WINDOW), **STEPS, **SAVED)
    whole.train()
    resumed = make(cls, tmp_path, objective=Objective(WINDOW), **STEPS, **SAVED)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [entry["loss"] for entry in logs(resumed)] == [entry["loss"] for entry in logs(whole)]
    torch.testing.assert_close(found(resumed), found(whole), rtol=0, atol=0)
    assert whole.smile_objective.state()["seen"] == 8 - 1  # the last row begins an epoch alone
    for name, expected in whole.smile_objective.state().items():
        torch.testing.assert_close(resumed.smile_objective.state()[name], expected)


def test_a_checkpoint_without_a_window_is_told_of(tmp_path):
    make(SmileTrainer, tmp_path, objective="smile", **STEPS, **SAVED).train()
    assert not list(tmp_path.rglob("smile_objective*"))
    resumed = make(SmileTrainer, tmp_path, objective=Objective(WINDOW), **STEPS, **SAVED)
    with pytest.warns(
        UserWarning, match="drops no captions until its window is full again: .*checkpoint-2"
    ):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_window_of_another_size_is_refused(tmp_path):
    make(SmileTrainer, tmp_path, objective=Objective(WINDOW), **STEPS, **SAVED).train()
    other = make(SmileTrainer, tmp_path, objective="truncation", model=llama(), **STEPS, **SAVED)
    with pytest.raises(ValueError, match="no window of 10000 captions"):
        other.train(resume_from_checkpoint=True)
