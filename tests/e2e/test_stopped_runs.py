"""Runs that are stopped or killed end like undisturbed ones."""

import os
import random
import signal

import pytest
import torch

from captioning.metrics.diversity import Length
from captioning.training.validation import caption_images
from tests.runs import difference, saved_step, stop_at
from tests.tiny import CLASSIC, log_of

STEPS = 8  # an epoch
DICE = random.Random()


def test_stopped_and_killed_it_ends_bit_identical(run, finished, tmp_path):
    """A request to stop loses no step; a kill loses those since the last checkpoint."""
    for step, number, code, saved in (
        (1, signal.SIGTERM, 0, 1),
        (5, signal.SIGUSR1, 0, 5),
        (STEPS, signal.SIGINT, 0, STEPS),
        (12, signal.SIGKILL, -9, 9),
    ):
        said = run("max_epoch=2", hook=stop_at(step, number), code=code)
        assert saved_step(tmp_path / "run", STEPS) == saved
        assert ("run the same command again to continue" in said) == (code == 0)
    assert "resuming from" in run("max_epoch=2")
    assert difference(finished("max_epoch=2", processes=1), tmp_path / "run") is None


# The most random numbers: scheduled sampling in training, and sampled captions.
SAMPLING = ["model=lstm", *CLASSIC, "image_size=48", "max_epoch=2", "batch_size=4"]
SAMPLING += ["teacher_forcing=linear", "teacher_forcing_k=3", "sample=true"]
SAMPLING += ["accumulation_steps=2", "bucket_batches=true"]
# The first scale is too high for float16: steps overflow and are skipped.
SCALED = ["precision=fp16", "max_epoch=1", "init_lr=1e-2", "drop_image=0.4"]
REWARDED = ["reward={facts: 1.0, cider: 0.5}", "facts_file=scenes.json", "max_tokens=12"]
REWARDED += ["reward_samples=3", "objective={smile: 0.1}", "max_epoch=1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [SAMPLING, SCALED, REWARDED], ids=["sampling", "loss_scaling", "rewards"]
)
def test_random_numbers_and_the_loss_scale_are_resumed(run, finished, tmp_path, settings):
    step = DICE.randrange(2, STEPS)
    for hook in (stop_at(step), None):
        run(*settings, hook=hook)
    assert difference(finished(*settings, processes=1), tmp_path / "run") is None, step
    if settings == SCALED:
        scaler = torch.load(tmp_path / "run" / "checkpoint_00.pth")["scaler"]
        assert scaler["_growth_tracker"] > 4 or scaler["scale"] < 2**16


@pytest.mark.slow
def test_two_processes_stopped_by_a_signal_to_either_end_bit_identical(run, finished, tmp_path):
    settings = ("max_epoch=2", "batch_size=4")
    # At the end of an epoch, its validation would notice a stop that the step has not.
    steps = sorted(DICE.sample([*range(1, STEPS), *range(STEPS + 1, 2 * STEPS)], 2))
    for rank, step in enumerate(steps):
        run(*settings, processes=2, hook=stop_at(step, rank=rank))
        assert saved_step(tmp_path / "run", STEPS) == step
    run(*settings, processes=2)
    assert difference(finished(*settings), tmp_path / "run") is None, steps


def test_stopped_while_captions_are_made_or_scored_it_ends_bit_identical(run, finished, tmp_path):
    """The epoch is saved without scores; resume adds them."""

    def signalled(call):
        return lambda *given: os.kill(os.getpid(), signal.SIGTERM) or call(*given)

    def in_generation(rank):
        names = caption_images.__globals__
        names["until_stop_requested"] = signalled(names["until_stop_requested"])

    def in_scoring(rank):
        Length.evaluate = signalled(Length.evaluate)

    for hook in (in_generation, in_scoring):
        run("max_epoch=1", hook=hook)
        assert saved_step(tmp_path / "run", STEPS) == STEPS
        assert not list(tmp_path.glob("run/result/*/metrics.json"))
        assert log_of(tmp_path / "run", "val") == []
    run("max_epoch=1")
    assert difference(finished("max_epoch=1", processes=1), tmp_path / "run") is None
