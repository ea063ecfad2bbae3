"""A trainer goes on from its checkpoint with what the objective has seen."""

import pytest
import torch

from smile import Objective
from tests.smile.trainer_parts import SmileSFTTrainer, SmileTrainer, found, llama, logs, make

WINDOW = {"mle": 0.1, "truncation": {"weight": 0.9, "drop": 0.5, "window": 6}}
OPTIONS = {
    **{"max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 0.01},
    **{"save_strategy": "steps", "save_steps": 2, "ignore_data_skip": False},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function of a trainer's class: one with a window, after a run that nothing stopped,
    and its checkpoint of half of the steps."""
    runs = {}

    def run(cls):
        if cls not in runs:
            folder = tmp_path_factory.mktemp("whole")
            trainer = make(cls, folder, objective=Objective(WINDOW), **OPTIONS)
            trainer.train()
            runs[cls] = trainer, str(folder / "checkpoint-2")
        return runs[cls]

    return run


@pytest.mark.parametrize("cls", [SmileTrainer, SmileSFTTrainer])
def test_the_window_of_truncation_is_that_of_the_undisturbed_run(cls, whole, tmp_path):
    undisturbed, checkpoint = whole(cls)
    other = llama(initializer_range=0.5)
    resumed = make(cls, tmp_path, model=other, objective=Objective(WINDOW), **OPTIONS)
    resumed.train(resume_from_checkpoint=checkpoint)
    losses = [[entry["loss"] for entry in logs(each)] for each in (resumed, undisturbed)]
    assert losses[0] == losses[1]
    torch.testing.assert_close(found(resumed), found(undisturbed), rtol=0, atol=0)
    state = undisturbed.smile_objective.state()
    assert state["seen"] == 8 - 1  # the last row begins an epoch alone
    torch.testing.assert_close(resumed.smile_objective.state(), state)


def test_a_checkpoint_without_a_window_is_told_of(tmp_path):
    make(SmileTrainer, tmp_path, objective="smile", **OPTIONS).train()
    assert not list(tmp_path.rglob("smile_objective*"))
    resumed = make(SmileTrainer, tmp_path, objective=Objective(WINDOW), **OPTIONS)
    with pytest.warns(
        UserWarning, match="drops no captions until its window is full again: .*checkpoint-2"
    ):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
