"""What test_jobs.py lets jobs do, in a module that a forked process can import."""

import os
import time
from pathlib import Path

from captioning.runtime import distributed, signals
from captioning.runtime.program import run_program


def do(code, folder):
    """Execute code, which may set `exit_code` and call the functions below."""
    found = {**globals(), "folder": Path(folder), "exit_code": None}
    exec(code, found)
    return found["exit_code"]


def until_asked(folder):
    """Write a file at the beginning, and one when a stop is requested."""

    def wait():
        (folder / f"up.{os.getpid()}").touch()
        while not signals.stop_requested():
            time.sleep(0.02)
        (folder / f"asked.{os.getpid()}").touch()

    run_program(wait)


def wait_for(folder, pattern, count):
    """Wait until the folder has `count` files that match, or more."""
    until = time.monotonic() + 60
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < until, pattern
        time.sleep(0.02)


def sum_of_ranks(folder):
    distributed.start("cpu")
    total = distributed.gather_on_main(distributed.rank() + 1)
    (folder / f"rank{distributed.rank()}").write_text(f"{total} on {os.environ['GPU']}")
    distributed.stop()
