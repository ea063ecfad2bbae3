"""Programs that measure this project beside a peer, alternately, in one run."""

import gc

from captioning.runtime.start import tune_process

# Every module here is a program: threads and memory are set as in those that users run.
tune_process()
gc.enable()

TOPICS = ("captioning", "decoding", "int8", "training", "objective", "loader", "vlm", "one_photo")
