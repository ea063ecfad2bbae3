"""Runs a sweep's jobs in parallel: the number of jobs, their devices, and their log lines."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Optional

import torch

from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job, Observer, cores, prepare, run_jobs
from captioning.runtime.progress import log_line


def slots(device: str, jobs: Optional[int]) -> list[dict[str, str]]:
    """The environment variables of each slot; each slot runs one job at a time.

    There is one slot per visible GPU. Without GPUs there are `jobs` slots, which share the cores.
    Raises UserError.
    """
    count = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if count:
        if jobs is not None and jobs > count:
            raise UserError(f"--jobs is {jobs}, but there are {count} GPUs: use one run per GPU")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(count)]
        return [{"CUDA_VISIBLE_DEVICES": name} for name in names[: jobs or count]]
    jobs = jobs or 1
    if jobs > 1 and device.startswith("cuda"):
        raise UserError(f"device is {device}, a single GPU: leave --jobs or device at the default")
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    return [{"OMP_NUM_THREADS": threads} for _ in range(jobs)]


def run_in_slots(jobs: Sequence[Job], free: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Run all jobs, one at a time in each slot; return {name: reason} of the failed jobs.

    Raises Stopped if this process was asked to stop.
    """
    # torch reads this variable when it is imported, which is before the jobs are forked.
    os.environ.update({k: v for k, v in free[0].items() if k == "OMP_NUM_THREADS"})
    prepare(["captioning.train"])
    return run_jobs(jobs, free, _RunLines(len(jobs), len(free)), keep_going=True)


class _RunLines(Observer):
    """Logs the start and end of each run, and the time left. width: runs in parallel."""

    def __init__(self, total: int, width: int):
        self.total, self.width = total, width
        self.began_at: dict[str, float] = {}
        self.seconds: list[float] = []

    def began(self, job: Job) -> None:
        self.began_at[job.name] = time.monotonic()
        gpu = job.environment.get("CUDA_VISIBLE_DEVICES")
        log_line(f"{job.name}: started{f' on GPU {gpu}' if gpu else ''}, see {job.log}")

    def ended(self, name: str, reason: Optional[str]) -> None:
        self.seconds.append(time.monotonic() - self.began_at[name])
        done = len(self.seconds)
        outcome = f"failed: {reason}" if reason else f"done in {self.seconds[-1]:.0f} s"
        if done < self.total:
            minutes = sum(self.seconds) / done * (self.total - done) / self.width / 60
            outcome += f", about {max(1, round(minutes))} min to go"
        log_line(f"[{done}/{self.total}] {name}: {outcome}")
