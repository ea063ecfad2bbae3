"""Tiny runs in processes that tests can kill, and the difference of two runs."""

import itertools
import os
import random
import signal
from pathlib import Path
from typing import Callable, Optional

import numpy as np
import pytest
import torch

from BLIP import read_checkpoint
from captioning import train
from captioning.models import checkpoints
from captioning.runtime import program
from captioning.scenes.make import make_scenes
from captioning.training.fsdp import MIN_TORCH
from captioning.training.step import TrainingStep
from tests.processes import Processes
from tests.tiny import TINY_RUN, log_of

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
needs_fsdp = pytest.mark.skipif(TORCH < MIN_TORCH, reason="sharding: fsdp needs a later torch")
SOAKED = """
max_length: 10
num_beams: 1
metrics: [length]
log_every: 1
checkpoint_every: 3
rank_timeout: 60
device: cpu
"""


def write_config(folder: Path, train_images: int = 64) -> Path:
    """Draw a data set and write the configuration of a run on it; 24 steps of 8 images."""
    make_scenes(folder / "scenes", splits={"train": train_images, "val": 5, "test": 3})
    path = folder / "tiny.yaml"
    path.write_text(TINY_RUN.format(data=folder / "scenes") + SOAKED)
    return path


class Run(Processes):
    """captioning.train in one or more processes; see `Processes`."""

    def __init__(
        self,
        config: Path,
        folder: Path,
        *arguments: str,
        processes: int = 1,
        hook: Optional[Callable[[int], None]] = None,
        output: Optional[Path] = None,
    ):
        self.folder = folder
        given = ["--config", str(config), "--output_dir", str(folder), *arguments]
        output = output or folder.with_name(folder.name + ".output")
        super().__init__(train.main, given, output, processes, hook)


def kept_runs(config: Path) -> Callable[..., Path]:
    """A function of settings that gives the folder of a finished run, which it has done once."""
    found: dict[tuple, Path] = {}
    folders = (config.with_name(f"run{n}") for n in itertools.count())

    def finished(*settings: str, processes: int = 2, hook=None) -> Path:
        if (*settings, processes) not in found:
            folder = next(folders)  # its own, also after one that failed
            run = Run(config, folder, *settings, processes=processes, hook=hook)
            assert run.wait() == [0] * processes, run.said()
            found[(*settings, processes)] = folder
        return found[(*settings, processes)]

    return finished


def before_steps(do: Callable) -> Callable[[int], None]:
    """A hook: call `do(rank, step, batches)` before each optimizer step, counted from 0.

    If it returns batches, the step has them instead.
    """

    def hook(rank: int) -> None:
        original = TrainingStep.__call__

        def step_of(self, batches, step):
            return original(self, do(rank, step, batches) or batches, step)

        TrainingStep.__call__ = step_of

    return hook


def stop_at(step: int, number: int = signal.SIGTERM, rank: int = 0) -> Callable[[int], None]:
    """A hook: the rank gets the signal within the step, counted from 1."""

    def disturb(own_rank, done, _):
        seed = int.from_bytes(os.urandom(4), "big")  # one that undisturbed runs do not have
        for generator in (random.seed, np.random.seed, torch.manual_seed):
            generator(seed)
        if (own_rank, done + 1) == (rank, step):
            os.kill(os.getpid(), number)

    return before_steps(disturb)


def be_quick(rank: int) -> None:
    """A hook: wait less for the process that caused an error."""
    program.FIRST_ERROR_WAIT_S = 1


def last_step(folder: Path) -> int:
    """The last step in a run's log."""
    return max((line["step"] for line in log_of(folder, "step")), default=0)


def saved_step(folder: Path, steps: int) -> int:
    """The step of the newest checkpoint that is whole; `steps` make an epoch. Looks, no more."""
    _, content, _ = checkpoints.read_newest(folder) or (None, {}, None)
    done = content["within"]["steps"] if "within" in content else steps
    return content["epoch"] * steps + done if content else 0


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a run's best checkpoint."""
    return read_checkpoint(str(folder / checkpoints.BEST))["model"]


def each_step(folder: Path, name: str) -> list[float]:
    """Return a logged value of each step."""
    return [line[name] for line in log_of(folder, "step")]


def assert_close_runs(first: Path, second: Path) -> None:
    """Compare the losses of all steps and the final weights."""
    for name in ("loss", "grad_norm"):
        assert each_step(first, name) == pytest.approx(each_step(second, name), rel=1e-4)
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=1e-4)


def difference(first: Path, second: Path) -> Optional[str]:
    """The first of weights, optimizer, log, captions and best that differs in any bit, or None."""
    last = checkpoints.epoch_checkpoints(first)[-1].name
    for name in (last, checkpoints.BEST):
        one, two = (torch.load(folder / name, weights_only=True) for folder in (first, second))
        for part in ("model", "optimizer", "scaler", "epoch"):
            try:
                torch.testing.assert_close(one[part], two[part], rtol=0, atol=0)
            except AssertionError:
                return f"{name}: {part}"
    for path in (first / "log.jsonl", *sorted((first / "result").glob("*.json"))):
        if path.read_bytes() != (second / path.relative_to(first)).read_bytes():
            return path.name
    return None
