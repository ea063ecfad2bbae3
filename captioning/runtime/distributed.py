"""Collectives and ranks. The same calls work in a single process and under torchrun."""

import gc
import os
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

# Ranks wait in a collective while rank 0 computes scores, of which SPICE may take an hour.
TIMEOUT = timedelta(hours=2)

T = TypeVar("T")

_training_group: Optional[dist.ProcessGroup] = None  # all processes, with a shorter timeout


def start(device: str) -> torch.device:
    """Join torchrun's process group, if there is one, and return the device to use.

    device: "auto" (this process's GPU, else the CPU) or a name such as "cpu" or "cuda:1". Raises
    UserError, also for a GPU that does not exist.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise UserError(f"device: {device!r} is no device; try auto, cpu, cuda or cuda:1")
    if chosen.type == "cuda":
        chosen = _select_gpu(chosen)
    if env_world_size() > 1:
        on_gpu = chosen.type == "cuda"
        with signals.ended_with_launcher():  # else it would wait hours for a dead launcher
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                timeout=TIMEOUT,
                device_id=chosen if on_gpu else None,
                **_restart_store(),
            )
    return chosen


def _restart_store() -> dict[str, Any]:
    """Return the arguments of `init_process_group` for its store; {} unless torchrun restarted us.

    torchrun's store outlives the processes. After a restart, all its keys get a new prefix. Without
    one, gloo would find the addresses of dead processes there.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if attempt == 0:
        return {}
    store, own_rank, size = next(rendezvous("env://"))
    store = dist.PrefixStore(f"attempt/{attempt}", store)
    return {"store": store, "rank": own_rank, "world_size": size}


def _select_gpu(device: torch.device) -> torch.device:
    """Choose the GPU and make it torch's current device. Raises UserError if it does not exist."""
    if device.index is not None and env_world_size() > 1:
        raise UserError(f"device: {device} is one GPU for {env_world_size()} processes; use cuda")
    index = local_rank() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"device: GPU {index} was requested, but there are {count}; use device=cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def stop() -> None:
    """Leave the process group, if there is one.

    All DistributedDataParallel objects must be freed before. An object that is freed later would
    free the group while it holds the GIL, for which the group's threads may wait. This deadlock at
    exit was seen with torch 2.8 and gloo.
    """
    global _training_group
    _training_group = None
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def create_training_group(seconds: float) -> Optional[dist.ProcessGroup]:
    """Create and return a process group with a timeout of `seconds`, for training steps.

    Returns None for a single process. `sum_over_ranks`, `any_rank` and `broadcast_buffers` use this
    group from now on. Other collectives keep the longer timeout, because rank 0 may work while the
    others wait.
    """
    global _training_group
    if dist.is_initialized():
        _training_group = dist.new_group(timeout=timedelta(seconds=seconds))
    return _training_group


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Return whether this process is rank 0, which prints and writes."""
    return rank() == 0


def env_world_size() -> int:
    """Return the number of processes that torchrun has started. Known also before `start`."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """This process's rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def on_several_machines() -> bool:
    """Return whether the processes are on more than one machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size())) < world_size()


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(values: Tensor) -> Tensor:
    """Replace each rank's tensor by the sum over all ranks, and return it."""
    if dist.is_initialized():
        dist.all_reduce(values, group=_training_group)
    return values


def any_rank(value: object, wait_long: bool = False) -> bool:
    """Return whether the value is true on any rank. A collective: all ranks call it.

    wait_long: use the longer timeout. Needed where other ranks may wait for rank 0.
    """
    if not dist.is_initialized():
        return bool(value)
    on_gpu = dist.get_backend() == "nccl"
    result = torch.tensor([float(bool(value))], device="cuda" if on_gpu else "cpu")
    dist.all_reduce(result, dist.ReduceOp.MAX, group=None if wait_long else _training_group)
    return bool(result.item())


def run_on_main(do: Callable[[], None]) -> None:
    """Run a function on rank 0 while the others wait. Its UserError is raised on all ranks."""
    problem = None
    if is_main():
        try:
            do()
        except UserError as error:
            problem = str(error)
    problem = broadcast_from_main(problem)
    if problem is not None:
        raise UserError(problem)


def raise_if_stop_requested(wait_long: bool = False) -> None:
    """Raise Stopped on all ranks if one of them was asked to stop. A collective.

    wait_long: see `any_rank`.
    """
    if any_rank(signals.stop_requested(), wait_long):
        raise signals.Stopped


def until_stop_requested(batches: Iterable[T], rounds: int) -> Iterator[T]:
    """Yield a rank's batches. Before each batch, all ranks stop if one was asked to stop.

    rounds: the largest number of batches of any rank. Raises Stopped on all ranks.
    """
    iterator = iter(batches)
    for _ in range(rounds):
        raise_if_stop_requested()
        batch = next(iterator, None)
        if batch is not None:
            yield batch


def broadcast_buffers(module: nn.Module) -> None:
    """Copy rank 0's buffers, such as running statistics, to all ranks.

    The buffers differ between ranks during training, and only rank 0 saves its buffers.
    """
    if dist.is_initialized():
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0, group=_training_group)


def gather_on_main(value: Any) -> Optional[list[Any]]:
    """Return all ranks' values in order of rank, on rank 0; None on other ranks."""
    if not dist.is_initialized():
        return [value]
    gathered = [None] * world_size() if is_main() else None
    dist.gather_object(value, gathered)
    return gathered


def broadcast_from_main(value: Any) -> Any:
    """Return rank 0's value on every rank."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """Run the block in each machine's first process first; the others then find its downloads."""
    is_first = local_rank() == 0
    if not is_first:
        barrier()
    yield
    if is_first:
        barrier()
