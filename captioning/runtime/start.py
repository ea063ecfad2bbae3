"""Settings of a process that a program makes when it starts, before torch is imported."""

import ctypes
import gc
import os
import sys


def tune_process() -> None:
    """Set the garbage collector, the threads and the allocator for speed.

    Environment variables of the user's take precedence. `exit_code` turns the collector on again.
    """
    # Imports make no garbage: to look for it takes a fifth of their time.
    gc.disable()

    # libgomp reads it when torch is loaded. By default its threads spin for milliseconds before
    # they sleep: beside other programs captioning then takes many times as long. With a tenth of
    # this value they sleep within a step, and waking them can take a quarter of its time.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")

    keep_memory()


def keep_memory() -> None:
    """Let glibc keep freed memory up to these bytes.

    Otherwise the pages of activations go back to the system at each step and are faulted in again
    at the next: a tenth of a step on a CPU, and more of encoding an image.
    """
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # glibc
            libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
