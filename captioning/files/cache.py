"""Where this user's programs keep what can be computed or fetched again."""

import hashlib
import os
from pathlib import Path
from typing import Optional


def cache_folder(given: Optional[Path] = None) -> Path:
    """The folder that is given, or else `smile` in XDG_CACHE_HOME or ~/.cache. It may not exist."""
    return given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smile"


def cache_key(of: str, length: int = 64) -> str:
    """The name, of that many hexadecimal digits, under which a cache keeps what is made of a text.

    The text may be a path whose bytes are no UTF-8.
    """
    return hashlib.sha256(of.encode(errors="surrogateescape")).hexdigest()[:length]
