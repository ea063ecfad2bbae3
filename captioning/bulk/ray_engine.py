"""Captions on a Ray cluster that is there: Ray's tasks are the processes that claim units."""

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Callable

import torch

from captioning.bulk.claims import caption_claimed
from captioning.bulk.plan import Plan
from captioning.bulk.request import Request
from captioning.bulk.work import Worker
from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line

ROOT = Path(__file__).resolve().parents[2]
# The code is uploaded for the tasks, without these folders and what git ignores.
EXCLUDED = ["docs", "tests", "web"]
CPUS = 4  # cores of a task without a GPU, unless a machine has fewer
TASKS = 256  # more tasks than a cluster has GPUs, so that machines may join
ROUNDS = 5  # a later round captions the units of processes and machines that were lost


def connect(device: str) -> torch.device:
    """Connect to this machine's cluster, or to RAY_ADDRESS; return the tasks' device.

    device: auto, cpu or cuda. Raises UserError.
    """
    before = signal.getsignal(signal.SIGTERM)  # ray.init replaces it
    try:
        import ray

        code = {"working_dir": str(ROOT), "excludes": EXCLUDED}
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        ray.init("auto", runtime_env=code, **quiet)
    except Exception as error:  # of many types: no library, no cluster, no token
        raise UserError(
            f"--engine ray: {one_line(error)}; docs/captioning.md says how to start a cluster"
        ) from None
    signal.signal(signal.SIGTERM, before)
    return torch.device("cuda" if device != "cpu" and "GPU" in ray.cluster_resources() else "cpu")


class Counters:
    """The counters that the tasks share; see `claims.Add`."""

    def __init__(self):
        self.counts = Counter()

    def add(self, key: str, number: int) -> int:
        self.counts[key] += number
        return self.counts[key]


def caption(
    request: Request,
    plan: Plan,
    left: list[int],
    load: Callable[[], Any],
    on_images: Callable[[int], None],
) -> list[str]:
    """Caption the units `left`; return `Worker.left_out` of all tasks. Raises UserError, Stopped.

    on_images: called with the number of images that were captioned.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cpus = [CPUS, *(node["Resources"].get("CPU", CPUS) for node in ray.nodes())]
    resources = {"num_gpus": 1} if "GPU" in ray.cluster_resources() else {"num_cpus": min(cpus)}
    task = ray.remote(max_retries=0, max_calls=0, **resources)(_caption)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    left_out, captioned = [], 0
    for _ in range(ROUNDS):
        counters = ray.remote(num_cpus=0, scheduling_strategy=here)(Counters).remote()
        arguments = (os.getcwd(), request, left, load, counters)
        pending = [task.remote(*arguments) for _ in range(min(len(left), TASKS))]
        while pending:
            ready, pending = ray.wait(pending, timeout=0.5)
            on_images(captioned + ray.get(counters.add.remote("images", 0)))
            if signals.stop_requested():
                counters.add.remote("stopped", 1)
            for result in ready:
                try:
                    left_out += ray.get(result)
                except ray.exceptions.RayTaskError as error:
                    if not isinstance(error.cause, (UserError, signals.Stopped)):
                        raise  # a bug
                    if isinstance(error.cause, UserError):
                        raise error.cause from None
                except ray.exceptions.RayError:  # the process or its machine was lost
                    pass
        if signals.stop_requested():
            raise signals.Stopped
        captioned += ray.get(counters.add.remote("images", 0))
        plan.refresh()
        left = [unit for unit in left if not plan.is_done(unit)]
    return left_out


def _caption(folder: str, request: Request, left: list[int], load: Callable, counters: Any):
    """Caption units in a process of Ray, as long as there are any.

    folder: the caller's working folder, so that relative paths mean the same files.
    """
    import ray

    def add(key: str, number: int) -> int:
        return ray.get(counters.add.remote(key, number))

    def on_images(number: int) -> None:
        add("images", number)
        if add("stopped", 0):
            signal.raise_signal(signal.SIGTERM)

    with contextlib.suppress(OSError):
        os.chdir(folder)
    if add("unit", 0) >= len(left):
        return []
    worker = Worker(request, Plan(request.parts), load(), on_images)
    with signals.watch():
        caption_claimed(worker, left, add)
    return worker.left_out
