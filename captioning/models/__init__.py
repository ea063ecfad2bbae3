"""Builds, loads and saves captioners; generates, scores and reranks captions.

Importing this package lets BLIP's `read_checkpoint` also read checkpoints in object stores.
"""

from BLIP.download import FETCHERS
from captioning.files.cache import local

FETCHERS.update(dict.fromkeys(("s3", "gs", "az"), local))
