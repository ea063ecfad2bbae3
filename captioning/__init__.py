"""The system: training, evaluation, bulk captioning and all that is around them."""

import ctypes
import gc
import os
import sys

# What is imported stays, and to look through it for garbage again and again takes a fifth of the
# time. A program sets this back once it begins; see `runtime/program.py`.
COLLECTED = gc.get_threshold()
gc.set_threshold(50_000, *COLLECTED[1:])

# Threads of torch's that wait for one another soon sleep. By themselves they would keep cores busy
# for milliseconds each time: beside other programs captions then take many times as long. With a
# tenth of these turns they sleep within a step, and to wake them can take a quarter of its time.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# glibc gives the memory of activations back at each step, to be given it, page by page, at the
# next: a tenth of a step on a CPU, and more of encoding an image. Up to these bytes it is kept.
if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
    _libc = ctypes.CDLL(None)
    if hasattr(_libc, "mallopt"):  # glibc
        _libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
        _libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
