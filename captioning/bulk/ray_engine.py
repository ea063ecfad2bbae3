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

ROOT = Path(__file__).resolve().parents[2]  # uploaded, without EXCLUDED and what git ignores
EXCLUDED = ["docs", "tests", "web"]
CPUS = 4  # cores of a task without a GPU, unless a machine has fewer

_model = None  # of a process of Ray, which runs many tasks


def connect(device: str) -> torch.device:
    """Connect to this machine's cluster, or to RAY_ADDRESS; return the tasks' device.

    device: auto, cpu or cuda. Raises UserError.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device is {device}; with --engine ray it is auto, cpu or cuda")
    before = signal.getsignal(signal.SIGTERM)  # ray.init replaces it
    try:
        import ray

        code = {"working_dir": str(ROOT), "excludes": EXCLUDED}
        ray.init("auto", runtime_env=code, logging_level="ERROR", log_to_driver=False)
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
    left: list[int],
    load: Callable[[], Any],
    on_images: Callable[[int], None],
    device: torch.device,
) -> list[str]:
    """Caption the units `left`; return the `left_out` of all. Raises UserError, Stopped.

    - on_images: called with the number of images that were captioned
    - device: from `connect`
    """
    import ray

    cpus = min([CPUS, *(node["Resources"].get("CPU", CPUS) for node in ray.nodes())])
    resources = {"num_gpus": 1} if device.type == "cuda" else {"num_cpus": cpus}
    task = ray.remote(max_retries=TRIES, max_calls=0, **resources)(_caption)
    pending = [task.remote(os.getcwd(), request, unit, load) for unit in left]
    images, left_out = 0, []
    while pending:
        if signals.stop_requested():
            raise signals.Stopped
        ready, pending = ray.wait(pending, timeout=1)
        for result in ready:
            try:
                unit, names, further = ray.get(result)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, UserError) else error) from None
            plan.add(names)
            left_out += further
            images += plan.kept(unit)
            on_images(images)
    return left_out


def _caption(folder: str, request: Request, unit: int, load: Callable) -> tuple:
    """Caption a unit in a process of Ray; return it with `done` and `left_out` of its `Worker`.

    folder: the caller's working folder, so that relative paths mean the same files.
    """
    global _model
    with contextlib.suppress(OSError):
        os.chdir(folder)
    _model = _model or load()
    worker = Worker(request, Plan(request.parts), _model, lambda number: None)
    worker.caption([unit], read_ahead=not worker.plan.tries(unit))
    return unit, worker.done, worker.left_out
