"""One process or many: started by torchrun or not, the same calls work."""

import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from captioning.errors import UserError

# Rank 0 scores alone while the others wait; SPICE on 5,000 captions takes a quarter of an hour.
TIMEOUT = timedelta(hours=1)

HEAD_START_S = 3


def start(device: str) -> torch.device:
    """Join the process group that torchrun has announced, if there is one; the device to use.

    device: "auto" (this process's GPU, else the CPU) or a name such as "cpu" or "cuda:1".
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if device == "auto":
        device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(
            f"device: {device!r} is no device; try auto, cpu, cuda or cuda:1"
        ) from error
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"device: {device} was asked for, but there is no GPU; use device=cpu")
        count = torch.cuda.device_count()
        chosen = torch.device("cuda", local_rank if chosen.index is None else chosen.index)
        if chosen.index >= count:
            raise UserError(f"device: {chosen} was asked for, but there are {count} GPUs")
        torch.cuda.set_device(chosen)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=TIMEOUT)
    return chosen


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
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        time.sleep(HEAD_START_S)


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's tensor, in place."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def gather_on_main(value: Any) -> Optional[list[Any]]:
    """Every rank's value in order of rank, on rank 0; None elsewhere."""
    if not dist.is_initialized():
        return [value]
    gathered = [None] * world_size() if is_main() else None
    dist.gather_object(value, gathered)
    return gathered


@contextmanager
def first_on_each_machine() -> Iterator[None]:
    """The first process of a machine runs the block before the others, who find its downloads."""
    first = int(os.environ.get("LOCAL_RANK", 0)) == 0
    if not first:
        barrier()
    yield
    if first:
        barrier()
