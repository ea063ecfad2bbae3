"""Whether a run's memory, open files and processes grow with its steps.

Sampled within the training loop, with data workers, evaluations and checkpoints as they come.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

from captioning.config import load_config
from captioning.training.fine_tuning import fine_tune
from captioning.training.step import TrainingStep
from tests.runs import write_config
from tests.soak.disturbed import BrokenPromise

PAGE = os.sysconf("SC_PAGE_SIZE")
# The most growth in a thousand steps; malloc's cache varies by less. A leaked file fails, a
# temporary one does not.
LIMITS = {"memory": 4 << 20, "of_workers": 4 << 20, "files": 0.5, "processes": 0.5}


class Sample(NamedTuple):
    """Resources of the process and its child processes at a step."""

    step: int
    memory: int  # resident, bytes
    of_workers: int
    files: int
    processes: int


def take_sample(step: int) -> Sample:
    workers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    held = [_resident(pid) for pid in workers]
    return Sample(step, _resident("self"), sum(held), len(os.listdir("/proc/self/fd")), len(held))


def _resident(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0


def slope(steps: Sequence[int], values: Sequence[float]) -> float:
    """Growth of a value per step: the median slope between all pairs of points.

    Theil and Sen's estimator: a single jump, as from a library that is loaded late, has no effect.
    """
    pairs = torch.combinations(torch.arange(len(steps)))
    x, y = torch.tensor(steps).double(), torch.tensor(values).double()
    rise = (y[pairs[:, 1]] - y[pairs[:, 0]]) / (x[pairs[:, 1]] - x[pairs[:, 0]])
    return rise.median().item()


def check_growth(folder: Path, steps: int) -> dict[str, float]:
    """Train in epochs of 50 steps, with two workers. Return what grew; raises BrokenPromise."""
    config = write_config(folder, train_images=400)
    given = [f"max_epoch={max(1, steps // 50)}", "num_workers=2", "checkpoint_every=20"]
    settings = load_config(config, given, {"output_dir": str(folder / "run")})
    samples: list[Sample] = []
    call = TrainingStep.__call__

    def watched(self, batches, step):
        if step % 10 == 0:
            samples.append(take_sample(step))
        return call(self, batches, step)

    with mock.patch.object(TrainingStep, "__call__", watched):
        fine_tune(settings, torch.device("cpu"))
    steps = [one.step for one in samples]
    found = {n: 1000 * slope(steps, [getattr(one, n) for one in samples]) for n in LIMITS}
    if grown := {n: value for n, value in found.items() if value > LIMITS[n]}:
        raise BrokenPromise(f"in {steps[-1]} steps there grew {grown} a thousand steps")
    first, last = samples[len(samples) // 10], samples[-1]
    return {
        "steps": last.step,
        "MB at a tenth of them": round(first.memory / 1e6, 1),
        "MB at the end": round(last.memory / 1e6, 1),
        "open files at a tenth": first.files,
        "open files at the end": last.files,
        **{f"{name}, more each 1000 steps": round(value, 3) for name, value in found.items()},
    }
