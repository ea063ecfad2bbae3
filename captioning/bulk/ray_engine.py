"""Captions on a Ray cluster that is there: a task captions a unit. Ray repeats lost tasks."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Callable

import torch

from captioning.bulk.plan import TRIES, Plan
from captioning.bulk.request import Request
from captioning.bulk.work import Worker
from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line

CPUS = 4  # cores of a task without a GPU, unless a machine has fewer
CODE = {"working_dir": str(Path(__file__).resolve().parents[2])}  # uploaded to all machines

_model = None  # of a process of Ray, which runs many tasks


def connect(device: str) -> torch.device:
    """Connect to this machine's cluster, or to RAY_ADDRESS; return the tasks' device.

    device: auto, cpu or cuda. Raises UserError.
    """
    before = signal.getsignal(signal.SIGTERM)  # ray.init replaces it
    try:
        import ray

        ray.init("auto", runtime_env=CODE, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # of many types: no library, no cluster, no token
        raise UserError(
            f"--engine ray: {one_line(error)}; docs/captioning.md says how to start a cluster"
        ) from None
    signal.signal(signal.SIGTERM, before)
    has_gpu = "GPU" in ray.cluster_resources()
    if device == "cuda" and not has_gpu:
        raise UserError("--device is cuda, and no machine has a GPU; add one or use cpu")
    return torch.device("cuda" if device != "cpu" and has_gpu else "cpu")


def caption(
    request: Request,
    plan: Plan,
    load: Callable[[], Any],
    on_images: Callable[[int], Any],
    device: torch.device,
) -> list[str]:
    """Caption the units that are left; return the `left_out` of all. Raises UserError, Stopped.

    - on_images: called with the number of images of each unit
    - device: from `connect`
    """
    import ray

    cpus = min([CPUS, *(node["Resources"].get("CPU", CPUS) for node in ray.nodes())])
    resources = {"num_gpus": 1} if device.type == "cuda" else {"num_cpus": cpus}
    task = ray.remote(max_retries=TRIES, max_calls=0, **resources)(_caption)
    pending = [task.remote(os.getcwd(), request, unit, load) for unit in plan.left()]
    left_out = []
    while pending:
        signals.raise_if_requested()
        ready, pending = ray.wait(pending, timeout=1)
        for result in ready:
            try:
                number, names = ray.get(result)
            except UserError as error:  # Ray's, whose text has the task's traceback
                raise error.cause from None
            on_images(number)
            left_out += names
    return left_out


def _caption(folder: str, request: Request, unit: int, load: Callable) -> tuple[int, list[str]]:
    """Caption a unit in a process of Ray; return the number of images, and the `left_out`.

    folder: the caller's working folder, so that relative paths mean the same files.
    """
    global _model
    with contextlib.suppress(OSError):
        os.chdir(folder)
    _model, images = _model or load(), []
    worker = Worker(request, Plan(request.parts), _model, images.append)
    worker.caption([unit], read_ahead=not worker.plan.tries(unit))
    return sum(images), worker.left_out
