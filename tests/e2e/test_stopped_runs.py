"""Runs that are stopped or killed end like undisturbed ones."""

import json
import os
import random
import signal

import pytest
import torch

from captioning.metrics.diversity import Length
from captioning.training.validation import caption_images
from tests.runs import before_steps, difference, last_step, saved_step, stop_at
from tests.tiny import CLASSIC, log_of

STEPS = 8  # an epoch
# Random steps; a failure names them.
DICE = random.Random()
SOME_STEPS = [1, STEPS, 2 * STEPS, *DICE.sample([*range(2, STEPS), *range(9, 16)], 2)]
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def test_stopped_and_killed_it_ends_bit_identical(run, finished, tmp_path):
    """A request to stop loses no step; a kill loses those since the last checkpoint."""
    for hook, code, saved in ((stop_at(5), 0, 5), (stop_at(12, signal.SIGKILL), -9, 9)):
        run("max_epoch=2", hook=hook, code=code)
        assert saved_step(tmp_path / "run", STEPS) == saved
    assert "resuming from" in run("max_epoch=2")
    assert difference(finished("max_epoch=2", processes=1), tmp_path / "run") is None


@pytest.mark.slow
def test_one_process_stopped_at_any_step_ends_bit_identical(run, finished, tmp_path):
    """One run stopped several times, by every signal; no step is repeated."""
    for count, step in enumerate(sorted(SOME_STEPS)):
        print(f"to be stopped at step {step}")
        said = run("max_epoch=2", hook=stop_at(step, SIGNALS[count % 3]))
        assert "run the same command again to continue" in said
        assert last_step(tmp_path / "run") == saved_step(tmp_path / "run", STEPS) == step
    run("max_epoch=2", "num_workers=2")
    assert difference(finished("max_epoch=2", processes=1), tmp_path / "run") is None, SOME_STEPS


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
    print(f"to be stopped at step {step}")
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
    print(f"to be stopped at steps {steps}")
    for rank, step in enumerate(steps):
        run(*settings, processes=2, hook=stop_at(step, rank=rank))
        assert saved_step(tmp_path / "run", STEPS) == step
    run(*settings, processes=2)
    assert difference(finished(*settings), tmp_path / "run") is None, steps


def recorder(found, stop_before=None):
    """A hook: the items of each step go to a file a rank, after those that are there."""

    def record(rank, step, batches):
        if step == stop_before:
            os.kill(os.getpid(), signal.SIGTERM)
        batch = next(batches)
        with open(f"{found}.{rank}", "a") as file:
            file.write(json.dumps([step, batch["index"]]) + "\n")
        return iter([batch])

    return before_steps(record)


def items(*paths):
    """The items of each step, those of rank 0 first."""
    found = {}
    for path in paths:
        for step, of_step in map(json.loads, path.read_text().splitlines()):
            found.setdefault(step, []).extend(of_step)
    return found


@pytest.mark.slow
def test_another_number_of_processes_keeps_the_order_of_images(run, tmp_path):
    run("max_epoch=2", name="one", hook=recorder(tmp_path / "all"))
    run("max_epoch=2", hook=recorder(tmp_path / "some", stop_before=4))
    run("max_epoch=2", "batch_size=4", processes=2, hook=recorder(tmp_path / "some"))
    found = items(tmp_path / "some.0", tmp_path / "some.1")
    assert found == items(tmp_path / "all.0") and len(found) == 2 * STEPS


def test_stopped_while_captions_are_made_or_scored_it_ends_bit_identical(run, finished, tmp_path):
    """The epoch is saved without scores; resume adds them."""

    def in_generation(rank):
        generate = caption_images.__globals__["until_stop_requested"]

        def signalled(batches, rounds):
            os.kill(os.getpid(), signal.SIGTERM)
            return generate(batches, rounds)

        caption_images.__globals__["until_stop_requested"] = signalled

    def in_scoring(rank):
        evaluate = Length.evaluate

        def signalled(self, captions):
            os.kill(os.getpid(), signal.SIGTERM)
            return evaluate(self, captions)

        Length.evaluate = signalled

    for hook in (in_generation, in_scoring):
        run("max_epoch=1", hook=hook)
        assert saved_step(tmp_path / "run", STEPS) == STEPS
        assert not list(tmp_path.glob("run/result/*/metrics.json"))
        assert log_of(tmp_path / "run", "val") == []
    run("max_epoch=1")
    assert difference(finished("max_epoch=1", processes=1), tmp_path / "run") is None
