"""The system: training, evaluation, bulk captioning and all that is around them."""

import gc
import os

# What is imported stays, and to look through it for garbage again and again takes a fifth of the
# time. A program sets this back once it begins; see `runtime/program.py`.
COLLECTED = gc.get_threshold()
gc.set_threshold(50_000, *COLLECTED[1:])

# Threads of torch's that wait for one another soon sleep. By themselves they would keep cores busy
# for milliseconds each time: beside other programs captions then take many times as long.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
