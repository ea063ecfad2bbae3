"""Builds, loads and saves captioners; generates, scores and reranks captions.

Importing this package lets BLIP's `read_checkpoint` also read checkpoints in object stores.
"""

from contextlib import suppress
from pathlib import Path

from BLIP.download import FETCHERS
from captioning.files.cache import local
from captioning.files.stores import Missing


def _fetch(address: str) -> Path:
    """Return the local copy of a file, of a folder's files, or of an index beside its shards."""
    folder, _, name = address.rstrip("/").rpartition("/")
    if name.endswith(".index.json"):
        return local(f"{folder}/*").with_name(name)
    try:
        return local(address)
    except Missing:
        with suppress(Missing):
            return local(f"{folder}/{name}/*").parent
        raise


FETCHERS.update(dict.fromkeys(("s3", "gs", "az"), _fetch))
