"""Trains and scores the runs of a sweep as jobs, in parallel on all GPUs or on a CPU."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import torch
from tqdm import tqdm

from captioning import train
from captioning.config import Config
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.jobs import Job, Observer, cores, start_server
from captioning.runtime.progress import log_line
from captioning.sweep.variants import Variant, keys_in
from captioning.training.selection import is_scored, is_trained

# Modules of training runs. They are imported once, before the jobs are forked, because importing
# takes seconds.
TRAINING_MODULES = (
    "captioning.train",
    "captioning.data.augmentation",
    "BLIP.blip",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "transformers",
)


class SweepRun(NamedTuple):
    """A run of a sweep. training, scoring: command lines of captioning.train for both parts."""

    folder: Path
    training: list[str]
    scoring: list[str]

    def config(self) -> Config:
        """Return the configuration of the training. Raises UserError."""
        return read_config(self.training)

    def is_done(self) -> bool:
        """Whether the run is trained and scored."""
        return is_scored(read_config(self.scoring)) and is_trained(self.config())

    def job(self, program: Callable[["SweepRun"], Optional[int]]) -> Job:
        """Return a job that calls a method of this class. Its log is beside the run's folder."""
        log = self.folder.with_name(f"{self.folder.name}.log")
        return Job(self.folder.name, partial(program, self), log)

    def train(self) -> int:
        """Train; return the exit code of captioning.train."""
        return train.main(self.training)

    def train_and_score(self) -> int:
        """Train, then caption and score the test split unless it is scored, or a stop is requested.

        Returns the exit code of captioning.train.
        """
        code = self.train()
        if code or signals.stop_requested() or is_scored(read_config(self.scoring)):
            return code
        return train.main([*self.scoring, "--evaluate", "--eval_split", "test"])


def plan_runs(
    config: str,
    folder: Path,
    variants: Sequence[Variant],
    overrides: Sequence[str],
    training: Sequence[str] = (),
) -> list[SweepRun]:
    """Return the runs of one configuration's variants, each in its own subfolder of `folder`.

    - config: the YAML file of the configuration
    - overrides: key=value for all runs
    - training: key=value that holds only while the runs are trained

    Raises UserError if a key is invalid.
    """
    runs = []
    for variant in variants:
        output = folder / variant.name
        arguments = ["--config", config, "--output_dir", str(output)]
        arguments += [*overrides, *variant.overrides]
        # With an override of `pretrained`, evaluation would caption with those weights instead of
        # the run's best checkpoint.
        scoring = [word for word in arguments if not word.startswith("pretrained=")]
        runs.append(SweepRun(output, [*arguments, *training], scoring))
    configs = [run.config() for run in runs]
    if any(each.reward for each in configs):
        raise UserError(f"{config}: unset reward, since a sweep compares objectives")
    if len({str(each.split) for each in configs}) > 1:
        raise UserError(
            f"{config}: split has no seed, so each seed would divide train_file differently: "
            "give split a seed"
        )
    return runs


def check_overrides(overrides: Sequence[str], keys: set[str], program: str) -> None:
    """Raise UserError if an override of the form key=value sets one of the program's own keys."""
    if forbidden := keys & keys_in(overrides):
        raise UserError(f"{min(forbidden)} is set by {program}: leave it out")


def read_config(arguments: Sequence[str]) -> Config:
    """Return the configuration of a command line of captioning.train. Raises UserError."""
    return train.read_config(train.parse_arguments(arguments))


def prepare_jobs(slots: Sequence[Mapping[str, str]]) -> None:
    """Start the server that forks jobs. slots: see `job_slots`."""
    # The server imports torch, which reads the number of threads at import.
    os.environ.update({k: v for k, v in slots[0].items() if k == "OMP_NUM_THREADS"})
    start_server(TRAINING_MODULES)


def job_slots(device: str, jobs: Optional[int]) -> list[dict[str, str]]:
    """Return the environment variables of each slot. A slot runs one job at a time.

    device: the key `device` of the configuration. With GPUs, there is one slot per visible GPU, or
    `jobs` slots if `jobs` is not None. Without GPUs, there are `jobs` slots, which share the cores;
    None means 1. Raises UserError if there are too few GPUs for `jobs`.
    """
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus:
        if jobs is not None and jobs > gpus:
            raise UserError(f"--jobs is {jobs}, but there are {gpus} GPUs: use one run per GPU")
        visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible_gpus.split(",") if visible_gpus else map(str, range(gpus))
        return [{"CUDA_VISIBLE_DEVICES": name} for name in list(names)[: jobs or gpus]]
    jobs = jobs or 1
    if jobs > 1 and device.startswith("cuda"):
        raise UserError(f"device is {device}, a single GPU: leave --jobs or device at the default")
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    return [{"OMP_NUM_THREADS": threads}] * jobs


class RunLogger(Observer):
    """Logs the start and the end of each run. bar: counts the runs, and estimates the time left."""

    def __init__(self, bar: tqdm):
        self.bar = bar

    def on_start(self, job: Job) -> None:
        gpu = job.environment.get("CUDA_VISIBLE_DEVICES")
        log_line(f"{job.name}: started{f' on GPU {gpu}' if gpu else ''}, see {job.log}")

    def on_end(self, name: str, reason: Optional[str]) -> None:
        log_line(f"{name}: {f'failed: {reason}' if reason else 'done'}")
        self.bar.update()
