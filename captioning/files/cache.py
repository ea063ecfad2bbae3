"""Where this user's programs keep what can be computed or fetched again."""

import os
from pathlib import Path
from typing import Optional


def cache_folder(given: Optional[Path] = None) -> Path:
    """The folder that is given, or else `smile` in XDG_CACHE_HOME or ~/.cache. It may not exist."""
    return given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smile"
