"""Builds, loads and saves captioners; generates, scores and reranks captions.

Importing this package lets BLIP's `read_checkpoint` also read checkpoints in object stores.
"""

from BLIP.weights.download import FETCHERS, STORES
from captioning.models.checkpoints import local_copy

FETCHERS.update(dict.fromkeys(STORES, local_copy))
