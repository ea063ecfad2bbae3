"""Collectives and ranks. The same calls work in one process and in several by torchrun."""

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

# Rank 0 scores alone while the others wait: SPICE, which ends after an hour, and METEOR.
TIMEOUT = timedelta(hours=2)
# How much longer NCCL waits in training than a process may hang: at its timeout NCCL kills the
# process (gloo raises an error), and the process that hangs should print its error first.
NCCL_GRACE_S = 10

T = TypeVar("T")

_training: Optional[dist.ProcessGroup] = None  # of all processes, with a shorter timeout
waiting = False  # whether this process may be waiting for the others


def start(device: str) -> torch.device:
    """Join torchrun's process group, if there is one, and return the device to use.

    device: "auto" (this process's GPU, else the CPU) or a name such as "cpu" or "cuda:1".
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
        chosen = _gpu(chosen)
    if announced() > 1:
        on_gpu = chosen.type == "cuda"
        with signals.ended_with_launcher():  # else this would wait hours for the launcher's store
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                timeout=TIMEOUT,
                device_id=chosen if on_gpu else None,
                **_store_of_restart(),
            )
    return chosen


def _store_of_restart() -> dict[str, Any]:
    """The store of processes that torchrun has restarted, with a prefix.

    torchrun's store outlives the processes: gloo would connect to the addresses of dead ones.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if attempt == 0:
        return {}
    store, own_rank, size = next(rendezvous("env://"))
    store = dist.PrefixStore(f"attempt/{attempt}", store)
    return {"store": store, "rank": own_rank, "world_size": size}


def _gpu(device: torch.device) -> torch.device:
    """The GPU to use, made the current one. Raises UserError if it does not exist."""
    if device.index is not None and announced() > 1:
        raise UserError(f"device: {device} is one GPU for {announced()} processes; use cuda")
    index = local_rank() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"device: GPU {index} was asked for, but there are {count}; use device=cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def stop() -> None:
    """Leave the process group, if there is one. Every DistributedDataParallel must be gone.

    One that is freed later frees the group while it holds the GIL, for which the group's threads
    may wait: a deadlock at exit, seen with torch 2.8 and gloo.
    """
    global _training
    _training = None
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def limit_waits(seconds: float) -> Optional[dist.ProcessGroup]:
    """Make the group for training steps, whose timeout is `seconds`; None for a single process.

    `sum_over_ranks`, `any_rank` and `share` use it from now on. Other collectives keep the longer
    timeout, as rank 0 works alone meanwhile.
    """
    global _training
    if dist.is_initialized():
        grace = NCCL_GRACE_S if dist.get_backend() == "nccl" else 0
        _training = dist.new_group(timeout=timedelta(seconds=seconds + grace))
    return _training


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process prints and writes."""
    return rank() == 0


def announced() -> int:
    """The number of processes that torchrun starts, also before `start`."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """This process's rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def on_several_machines() -> bool:
    """Whether the processes are on more than one machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size())) < world_size()


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's tensor, in place."""
    if dist.is_initialized():
        with waits_for_others():
            dist.all_reduce(values, group=_training)
    return values


def any_rank(value: object, patiently: bool = False) -> bool:
    """Whether the value is true on any rank. A collective: all ranks call it.

    patiently: with the longer timeout, as rank 0 may be working alone; see `limit_waits`.
    """
    if not dist.is_initialized():
        return bool(value)
    on_gpu = dist.get_backend() == "nccl"
    found = torch.tensor([float(bool(value))], device="cuda" if on_gpu else "cpu")
    with waits_for_others():
        dist.all_reduce(found, dist.ReduceOp.MAX, group=None if patiently else _training)
        return bool(found.item())


@contextmanager
def waits_for_others() -> Iterator[None]:
    """Within the block this process may wait for the others: its `Watchdog` does not end it."""
    global waiting
    waiting = True
    yield
    waiting = False


def main_alone(do: Callable[[], None]) -> None:
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


def stop_if_asked(patiently: bool = False) -> None:
    """Raise Stopped on all ranks if one of them was asked to stop. A collective."""
    if any_rank(signals.stop_requested(), patiently):
        raise signals.Stopped


def until_asked(batches: Iterable[T], rounds: int) -> Iterator[T]:
    """Yield a rank's batches; before each, all ranks stop together if one was asked to.

    rounds: the most batches of any rank, the same on all. Raises Stopped on all ranks.
    """
    iterator = iter(batches)
    for _ in range(rounds):
        stop_if_asked()
        batch = next(iterator, None)
        if batch is not None:
            yield batch


def share_buffers(module: nn.Module) -> None:
    """Broadcast rank 0's floating-point buffers, such as running statistics.

    In training each rank has its own, and only rank 0's are saved.
    """
    share(buffer for buffer in module.buffers() if buffer.is_floating_point())


def share(tensors: Iterable[Tensor]) -> None:
    """Broadcast rank 0's values, in place."""
    if dist.is_initialized():
        with waits_for_others():
            for tensor in tensors:
                dist.broadcast(tensor, src=0, group=_training)


def gather_on_main(value: Any) -> Optional[list[Any]]:
    """Every rank's value in order of rank, on rank 0; None elsewhere."""
    if not dist.is_initialized():
        return [value]
    gathered = [None] * world_size() if is_main() else None
    dist.gather_object(value, gathered)
    return gathered


def broadcast_from_main(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    if not dist.is_initialized():
        return value
    values = [value]
    with waits_for_others():
        dist.broadcast_object_list(values, src=0)
    return values[0]


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """The first process of a machine runs the block first; the others then find its downloads."""
    first = local_rank() == 0
    if not first:
        barrier()
    yield
    if first:
        barrier()
