"""The folder of cached files: results and downloads that can be made again."""

import hashlib
import os
from pathlib import Path
from typing import Optional


def cache_folder(given: Optional[Path] = None) -> Path:
    """Return `given`, or else `smile` in XDG_CACHE_HOME or ~/.cache. It may not exist."""
    return given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smile"


def cache_key(of: str, length: int = 64) -> str:
    """Return the name, of `length` hexadecimal digits, of a text's file in a cache.

    The text may be a path whose bytes are not UTF-8.
    """
    return hashlib.sha256(of.encode(errors="surrogateescape")).hexdigest()[:length]
