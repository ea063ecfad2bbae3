"""A whole run, stopped and resumed."""

import os
import signal
from unittest import mock

import torch

from captioning.models import checkpoints
from captioning.scenes.make import make_scenes
from captioning.training.step import TrainingStep
from tests.gpu.card import DEVICE, REHEARSAL, relative_error
from tests.programs import run_program
from tests.tiny import TINY_RUN, log_of

SHORT = "max_epoch: 2\nmetrics: [diversity]\nlog_every: 1\neval_every: 9\nmax_length: 12\n"


def losses(folder):
    return [line["loss"] for line in log_of(folder, "step")]


def weights(folder):
    content = torch.load(checkpoints.epoch_checkpoints(folder)[-1], map_location="cpu")
    return torch.cat([x.flatten().float() for x in content["model"].values()])


def stop_at(step):
    """Return a step of training that asks the run to stop in the one of this number, from 0."""
    step_of = TrainingStep.__call__

    def call(self, batches, number):
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return step_of(self, batches, number)

    return call


def test_a_resumed_run_has_the_loss_curve_of_one_that_was_never_stopped(tmp_path):
    whole, parted, config = (tmp_path / name for name in ("whole", "parted", "run.yaml"))
    make_scenes(tmp_path / "scenes", splits={"train": 24, "val": 4, "test": 4})
    config.write_text(TINY_RUN.format(data=tmp_path / "scenes").replace("max_epoch: 3\n", SHORT))
    device = ["--device", DEVICE.type, f"precision={'fp32' if REHEARSAL else 'bf16'}"]

    def trained(folder):
        given = ["--config", config, "--output_dir", folder, *device]
        done = run_program("captioning.train", *given)
        assert done.code == 0, done.err[-1000:]
        return done.err

    trained(whole)
    with mock.patch.object(TrainingStep, "__call__", stop_at(3)):
        assert "stopped by SIGTERM" in trained(parted)
    assert len(losses(parted)) == 4
    assert "resuming from" in trained(parted)
    pairs = list(zip(losses(whole), losses(parted)))
    equal, apart = sum(a == b for a, b in pairs), relative_error(weights(parted), weights(whole))
    print(f"{equal} of {len(pairs)} losses to the bit, weights {apart:.1e} apart")
    assert len(pairs) == 6 and all(abs(a - b) < 2e-2 * abs(a) for a, b in pairs), pairs
