"""One process or many: started by torchrun or not, the same calls work."""

import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from captioning.errors import UserError

# Rank 0 scores alone while the others wait: more than SPICE, given up after an hour, and METEOR.
TIMEOUT = timedelta(hours=2)

HEAD_START_S = 10


def start(device: str) -> torch.device:
    """Join the process group that torchrun has announced, if there is one; the device to use.

    device: "auto" (this process's GPU, else the CPU) or a name such as "cpu" or "cuda:1".
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise UserError(f"device: {device!r} is no device; try auto, cpu, cuda or cuda:1")
    if chosen.type == "cuda":
        chosen = _gpu(chosen, local_rank)
    if _announced() > 1:
        on_gpu = chosen.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=TIMEOUT,
            device_id=chosen if on_gpu else None,
        )
    return chosen


def _gpu(device: torch.device, local_rank: int) -> torch.device:
    """The GPU that is meant, made the current one. Raises UserError if there is none."""
    if device.index is not None and _announced() > 1:
        raise UserError(f"device: {device} is one GPU for {_announced()} processes; use cuda")
    index = local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"device: GPU {index} was asked for, but there are {count}; use device=cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def stop() -> None:
    """Leave the process group, if there is one. Every DistributedDataParallel must be gone.

    One that is freed later frees the group too, holding the interpreter's lock that the group's
    own threads may wait for: a deadlock at exit, seen in two runs of five with torch 2.8 and gloo.
    """
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process prints and writes."""
    return rank() == 0


def report(line: str) -> None:
    """Print this process's error; one that rank 0 has too is printed by rank 0 alone."""
    if not is_main():
        wait_for_the_cause()
        line = f"[rank {rank()}] {line}"
    print(line, file=sys.stderr, flush=True)


def wait_for_the_cause() -> None:
    """Before an error is shown: the process whose error may have caused it goes first.

    A process that loses another in mid-collective fails with a traceback that says nothing; the
    launcher ends it in this time, after the other has shown the cause.
    """
    if _announced() > 1:
        time.sleep(HEAD_START_S)


def end_after_a_bug() -> None:
    """In a handler, in one of several processes: show the traceback and end.

    At once, since the traceback keeps the distributed model alive; see `stop`.
    """
    if _announced() > 1:
        wait_for_the_cause()
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _announced() -> int:
    """The number of processes that torchrun has announced."""
    return int(os.environ.get("WORLD_SIZE", 1))


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's tensor, in place."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def share_buffers(module: nn.Module) -> None:
    """Give every rank the floating-point buffers of rank 0, such as running statistics.

    Each rank keeps its own while it trains, and only rank 0's are saved.
    """
    if dist.is_initialized():
        for buffer in module.buffers():
            if buffer.is_floating_point():
                dist.broadcast(buffer, src=0)


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
    dist.broadcast_object_list(values, src=0)
    return values[0]


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """The first process of a machine runs the block before the others, who find its downloads."""
    first = int(os.environ.get("LOCAL_RANK", 0)) == 0
    if not first:
        barrier()
    yield
    if first:
        barrier()
