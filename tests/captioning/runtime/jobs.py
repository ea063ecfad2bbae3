"""The jobs of test_jobs.py, in a module that a forked process can import."""

import os
import time
from pathlib import Path

from captioning.runtime import signals
from captioning.runtime.program import run_program


def say_and_end(line, code):
    print(line)
    return code


def die():
    os.kill(os.getpid(), 9)


def break_down():
    raise RuntimeError("a bug")


def until_stop_requested(folder):
    """Write a file at the beginning, and one when a stop is requested."""

    def wait():
        (Path(folder) / f"up.{os.getpid()}").touch()
        while not signals.stop_requested():
            time.sleep(0.02)
        (Path(folder) / f"asked.{os.getpid()}").touch()

    return run_program(wait)


def fail_once_up(folder, line, code):
    """Fail once the other job handles signals."""
    wait_for_all(Path(folder), "up.*", 1)
    return say_and_end(line, code)


def fail_when_asked(folder):
    until_stop_requested(folder)
    return say_and_end("error: a file of the job that failed is missing", 2)


def stopped_by_another(folder):
    os.kill(os.getpid(), 15)
    return until_stop_requested(folder)


def never_end(folder):
    """Ignore a request to stop."""
    (Path(folder) / f"up.{os.getpid()}").touch()
    while True:
        time.sleep(1)


def meet(folder, others):
    """Write a file named after the slot, then wait until `others` jobs have begun."""
    (Path(folder) / f"met.{os.getpid()}.{os.environ['GPU']}").touch()
    wait_for_all(Path(folder), "met.*", others)


def sum_of_ranks(folder):
    import torch

    from captioning.runtime import distributed

    distributed.start("cpu")
    total = distributed.sum_over_ranks(torch.tensor([distributed.rank() + 1.0]))
    (Path(folder) / f"rank{distributed.rank()}").write_text(f"{total.item():g}")
    distributed.stop()


def wait_for_all(folder, pattern, count):
    """Wait until the folder has `count` files that match, or more."""
    for _ in range(3000):
        if len(list(folder.glob(pattern))) >= count:
            return
        time.sleep(0.02)
    raise TimeoutError(pattern)
