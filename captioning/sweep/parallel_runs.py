"""Runs a sweep's jobs in parallel, on all GPUs or on a CPU, and logs their progress."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Optional

import torch

from captioning.runtime.errors import UserError
from captioning.runtime.jobs import Job, Observer, cores, run_jobs, start_server
from captioning.runtime.progress import log_line

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
        names = visible_gpus.split(",") if visible_gpus else [str(number) for number in range(gpus)]
        return [{"CUDA_VISIBLE_DEVICES": name} for name in names[: jobs or gpus]]
    jobs = jobs or 1
    if jobs > 1 and device.startswith("cuda"):
        raise UserError(f"device is {device}, a single GPU: leave --jobs or device at the default")
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    return [{"OMP_NUM_THREADS": threads} for _ in range(jobs)]


def run_in_slots(jobs: Sequence[Job], slots: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Run all jobs, one at a time in each slot; return {name: reason} of the failed jobs.

    Raises Stopped if this process was asked to stop.
    """
    # The server that forks the jobs imports torch, which reads OMP_NUM_THREADS at import, so the
    # variable has to be set before.
    os.environ.update({k: v for k, v in slots[0].items() if k == "OMP_NUM_THREADS"})
    start_server(TRAINING_MODULES)
    return run_jobs(jobs, slots, _RunLogger(len(jobs), len(slots)), keep_going=True)


def raise_failures(failures: Mapping[str, str]) -> None:
    """Raise UserError if a job failed. failures: {name: reason}."""
    for name, reason in failures.items():
        raise UserError(f"{name} failed: {reason}")


class _RunLogger(Observer):
    """Logs the start and end of each run, and an estimate of the time left.

    total: the number of runs. parallel: the number of runs at a time.
    """

    def __init__(self, total: int, parallel: int):
        self.total, self.parallel = total, parallel
        self.began_at = {}
        self.durations = []

    def on_start(self, job: Job) -> None:
        self.began_at[job.name] = time.monotonic()
        gpu = job.environment.get("CUDA_VISIBLE_DEVICES")
        log_line(f"{job.name}: started{f' on GPU {gpu}' if gpu else ''}, see {job.log}")

    def on_end(self, name: str, reason: Optional[str]) -> None:
        self.durations.append(time.monotonic() - self.began_at[name])
        done = len(self.durations)
        outcome = f"failed: {reason}" if reason else f"done in {self.durations[-1]:.0f} s"
        if done < self.total:
            minutes = sum(self.durations) / done * (self.total - done) / self.parallel / 60
            outcome += f", about {max(1, round(minutes))} min to go"
        log_line(f"[{done}/{self.total}] {name}: {outcome}")
