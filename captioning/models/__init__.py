"""Builds, loads and saves captioners; generates, scores and reranks captions.

Importing this package lets BLIP's `read_checkpoint` also read checkpoints in object stores.
"""

from BLIP.download import FETCHERS, STORES
from captioning.files.cache import local

FETCHERS.update(dict.fromkeys(STORES, local))
