"""Programs that measure this project and a peer in one run, taking turns."""

import gc

from captioning.runtime.start import tune_process

# All modules here are programs. Threads and memory are set as in the programs of users.
tune_process()
gc.enable()

TOPICS = ("captioning", "decoding", "int8", "training", "objective", "loader", "vlm", "one_photo")
