"""How a process of several ends in an error, so that the one that caused it is heard first."""

import os
import sys
import time
import traceback

import torch.distributed as dist

from captioning.runtime import distributed, stopping

HEAD_START_S = 10


def report(line: str) -> None:
    """Print this process's error; one that rank 0 has too is printed by rank 0 alone."""
    if not distributed.is_main():
        wait_for_the_cause()
        line = f"[rank {distributed.rank()}] {line}"
    print(line, file=sys.stderr, flush=True)


def wait_for_the_cause() -> None:
    """Before an error is shown: the process whose error may have caused it goes first.

    A process that loses another in mid-collective fails with a traceback that says nothing; the
    launcher ends it in this time, after the other has shown the cause.
    """
    until = time.monotonic() + HEAD_START_S
    while distributed.announced() > 1 and time.monotonic() < until:
        if stopping.asked():  # by the launcher, which has seen the other end
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.1)


def end_after_a_bug() -> None:
    """In a handler, in one of several processes: show the traceback and end.

    At once, since the traceback keeps the distributed model alive; see `stop`.
    """
    if distributed.announced() > 1:
        silent = ", ".join(map(str, _silent_ranks()))
        if silent:
            line = f"error: [rank {distributed.rank()}] waited in vain for rank {silent}"
            print(line, file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _silent_ranks() -> list[int]:
    """After `wait_for_the_cause`, those that have not failed as well: they are gone or hang."""
    if not dist.is_initialized():
        wait_for_the_cause()
        return []
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"failed/{distributed.rank()}", "")
        wait_for_the_cause()
        ranks = range(distributed.world_size())
        return [other for other in ranks if not store.check([f"failed/{other}"])]
    except RuntimeError:  # the launcher, which keeps the store, is gone
        return []
