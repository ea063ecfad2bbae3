"""Process settings that a program makes at its start, before torch is imported."""

import ctypes
import gc
import os
import sys


def tune_process() -> None:
    """Set the garbage collector, the threads and the allocator for speed.

    The user's environment variables take precedence. `exit_code` turns the collector on again.
    """
    # Imports create no garbage. Collecting would take a fifth of the import time.
    gc.disable()

    # libgomp reads this variable when torch is loaded. By default its threads spin for milliseconds
    # before they sleep. Next to other busy programs, captioning then takes many times as long. With
    # a tenth of this value, threads sleep within a step, and waking them can take a quarter of the
    # step.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")

    keep_memory()


def keep_memory() -> None:
    """Let glibc keep freed memory for reuse, up to the thresholds below.

    Otherwise each step returns the pages of activations to the system, and the next step faults
    them in again. This takes a tenth of a training step on a CPU, and more when encoding an image.
    """
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # glibc
            libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
