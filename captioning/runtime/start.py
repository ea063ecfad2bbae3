"""Tunes the process of a program at its start, before torch is imported."""

import ctypes
import gc
import os
import sys
import warnings


def tune_process() -> None:
    """Configure the garbage collector and the threads for speed, then call `configure_process`.

    Environment variables of the user take precedence: OMP_WAIT_POLICY, GOMP_SPINCOUNT, MALLOC_*.
    `captioning.runtime.program.run_program` enables the collector again.
    """
    # Imports create hardly any garbage, but collections would take a fifth of the import time.
    gc.disable()

    # libgomp (OpenMP) reads this variable when torch is loaded. It sets how long idle threads spin
    # before they sleep. By default they spin for milliseconds: if other programs use the CPU too,
    # captioning then takes many times longer. With a tenth of the value here, threads would sleep
    # within a step, and waking them could take a quarter of the step.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")

    configure_process()


def configure_process() -> None:
    """Configure what every process needs, also a job or a Ray actor: allocator and warnings."""
    keep_memory()
    # `captioning.data.image` limits the size itself.
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")


def keep_memory() -> None:
    """Let glibc keep freed memory for reuse: blocks of up to 32 MiB, and 1 GiB in all.

    Otherwise each step returns the memory pages of its activations to the system, and the next step
    causes page faults to get pages again. This takes a tenth of a training step on a CPU, and a
    larger part of encoding an image.
    """
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # glibc
            libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
