"""Wraps torch.distributed: the same calls work in a single process and under torchrun."""

import gc
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Optional, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from captioning.runtime import signals
from captioning.runtime.errors import UserError

# Other ranks wait in a collective while rank 0 computes metrics. The metric SPICE may take an hour.
TIMEOUT = timedelta(hours=2)

START_TIMEOUT = timedelta(minutes=10)  # wait until all processes have started

T = TypeVar("T")

_device = torch.device("cpu")  # see `start`
# A second group of all processes with a shorter timeout, see `create_training_group`.
_training_group: Optional[dist.ProcessGroup] = None


def start(device: str) -> torch.device:
    """Join torchrun's process group, if there is one, and return the device to use.

    device: "auto" (this process's GPU, or the CPU without a GPU), or a name such as "cpu" or
    "cuda:1". Raises UserError for an invalid name or a GPU that does not exist.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UserError(f"device: {device!r} is no device; try auto, cpu, cuda or cuda:1")
    on_gpu = torch.cuda.is_available() if device == "auto" else device != "cpu"
    global _device
    _device = _select_gpu(device) if on_gpu else torch.device("cpu")
    if env_world_size() > 1:
        store, own_rank, size = next(rendezvous("env://", timeout=START_TIMEOUT))
        store.set_timeout(TIMEOUT)
        # torchrun's store outlives processes that it restarts. Without the prefix, gloo would find
        # the addresses of dead processes in it.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=TIMEOUT,
            store=dist.PrefixStore(attempt, store),
            rank=own_rank,
            world_size=size,
            device_id=_device if on_gpu else None,
        )
    return _device


def _select_gpu(name: str) -> torch.device:
    """Choose the GPU and make it torch's current device. Raises UserError if it does not exist."""
    number = name.partition(":")[2]
    if number and env_world_size() > 1:
        raise UserError(f"device: {name} is one GPU for {env_world_size()} processes; use cuda")
    device, count = torch.device("cuda", int(number or local_rank())), torch.cuda.device_count()
    if device.index >= count:
        raise UserError(
            f"device: GPU {device.index} was requested, but there are {count}; use device=cpu"
        )
    torch.cuda.set_device(device)
    return device


def stop() -> None:
    """Leave the process group, if there is one.

    The caller must first drop its references to DistributedDataParallel objects. Such an object,
    if freed later, would free the group while holding the GIL, for which the group's threads may
    be waiting: a deadlock at exit. This was seen with torch 2.8 and gloo.
    """
    global _training_group
    _training_group = None
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def create_training_group(seconds: float) -> Optional[dist.ProcessGroup]:
    """Create and return a process group with a timeout of `seconds`, for training steps.

    Returns None for a single process. From now on, `sum_over_ranks` and
    `broadcast_buffers` use this group. The other collectives keep the longer timeout, because rank
    0 may compute metrics while the other ranks wait in them.
    """
    global _training_group
    if dist.is_initialized():
        _training_group = dist.new_group(timeout=timedelta(seconds=seconds))
    return _training_group


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Return whether this process is rank 0, which logs and writes the run's files."""
    return rank() == 0


def env_world_size() -> int:
    """Return the number of processes that torchrun has started; 1 without torchrun.

    Unlike `world_size`, it can be called before `start`.
    """
    return int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """Return this process's rank among the processes of its machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum a tensor over all ranks in place, and return the tensor. All ranks call this."""
    if dist.is_initialized():
        dist.all_reduce(values, group=_training_group)
    return values


def run_on_main(function: Callable[[], T]) -> T:
    """Run `function` on rank 0 while the other ranks wait. Return its result on all ranks.

    All ranks call this. If it raises UserError or Stopped, all ranks raise it.
    """
    result = problem = None
    if is_main():
        try:
            result = function()
        except (UserError, signals.Stopped) as error:
            problem = error
    result, problem = broadcast_from_main((result, problem))
    if problem is not None:
        raise problem
    return result


def until_stop_requested(batches: Iterable[T], rounds: int) -> Iterator[T]:
    """Yield this rank's batches. Before each batch, raise Stopped if any rank was asked to stop.

    rounds: the number of batches of the rank with the most. All ranks check for a stop this many
    times, so that a rank with fewer batches does not leave the others waiting.
    """
    iterator = iter(batches)
    for _ in range(rounds):
        stop = signals.stop_requested()
        if dist.is_initialized():
            stop = sum_over_ranks(torch.tensor(float(bool(stop)), device=_device))
        if stop:
            raise signals.Stopped
        batch = next(iterator, None)
        if batch is not None:
            yield batch


def broadcast_buffers(module: nn.Module) -> None:
    """Copy rank 0's buffers, such as running statistics, to all ranks.

    During training, the buffers of the ranks differ, and a checkpoint has only rank 0's. If all
    ranks continue with rank 0's buffers, a resumed run computes the same as an uninterrupted one.
    """
    if dist.is_initialized():
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0, group=_training_group)


def gather_on_main(value: Any) -> Optional[list[Any]]:
    """Return the list of all ranks' values, by rank, on rank 0; None on other ranks."""
    if not dist.is_initialized():
        return [value]
    gathered = [None] * world_size() if is_main() else None
    dist.gather_object(value, gathered)
    return gathered


def broadcast_from_main(value: Any) -> Any:
    """Return rank 0's value on every rank. All ranks call this."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """Run the block first in one process of each machine, then in the machine's other processes.

    The other processes then find the files that the first one has downloaded.
    """
    is_first = local_rank() == 0
    if not is_first:
        barrier()
    yield
    if is_first:
        barrier()
