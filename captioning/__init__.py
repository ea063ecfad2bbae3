"""The system: training, evaluation, bulk captioning and all that is around them."""

import gc

# What is imported stays, and to look through it for garbage again and again takes a fifth of the
# time. A program sets this back once it begins; see `runtime/program.py`.
COLLECTED = gc.get_threshold()
gc.set_threshold(50_000, *COLLECTED[1:])
