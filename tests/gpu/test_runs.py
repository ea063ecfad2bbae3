"""Whole runs: stopped and resumed, and short of memory."""

import os
import signal
from unittest import mock

import torch

from captioning.models import checkpoints
from captioning.scenes.make import make_scenes
from captioning.training.step import TrainingStep
from tests.gpu.card import relative_error
from tests.programs import run_program
from tests.tiny import TINY_RUN, log_of

PRECISION = {"cuda": "bf16", "cpu": "fp32"}


def config_of(card):
    path = card.folder / "run.yaml"
    if not path.exists():
        make_scenes(card.folder / "scenes", splits={"train": 24, "val": 4, "test": 4})
        short = "metrics: [diversity]\nlog_every: 1\neval_every: 9\nmax_length: 12\n"
        text = TINY_RUN.format(data=card.folder / "scenes").replace("max_epoch: 3", "max_epoch: 2")
        path.write_text(text + short)
    return path


def trained(card, folder, *changes):
    """Train a run, and return its stderr."""
    given = ["--config", config_of(card), "--output_dir", folder, "--device", card.device.type]
    done = run_program("captioning.train", *given, *changes)
    assert done.code == 0, done.err[-1000:]
    return done.err


def losses(folder):
    return [line["loss"] for line in log_of(folder, "step")]


def weights(folder):
    content = torch.load(checkpoints.epoch_checkpoints(folder)[-1], map_location="cpu")
    return torch.cat([x.flatten().float() for x in content["model"].values()])


def stopped_after(steps):
    """Return a context in which a run is asked to stop after so many steps."""
    step_of = TrainingStep.__call__

    def step(self, batches, number):
        if number + 1 == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return step_of(self, batches, number)

    return mock.patch.object(TrainingStep, "__call__", step)


def test_a_resumed_run_has_the_loss_curve_of_one_that_was_never_stopped(card):
    precision = f"precision={PRECISION[card.device.type]}"
    whole, parted = (card.folder / name for name in ("whole", "parted"))
    trained(card, whole, precision)
    with stopped_after(4):
        assert "stopped by SIGTERM" in trained(card, parted, precision)
    assert len(losses(parted)) == 4
    assert "resuming from" in trained(card, parted, precision)
    pairs = list(zip(losses(whole), losses(parted)))
    equal, apart = sum(a == b for a, b in pairs), relative_error(weights(parted), weights(whole))
    print(f"{equal} of {len(pairs)} losses to the bit, weights {apart:.1e} apart")
    assert len(pairs) == 6 and all(abs(a - b) < 2e-2 * abs(a) for a, b in pairs), pairs
