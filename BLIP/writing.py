"""Writes files and folders of checkpoints."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from BLIP.checkpoint import CheckpointError
from BLIP.download import first_line


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a temporary folder, for the block to write a file or folder.

    If the block succeeds, its result is renamed to `path`. There it replaces a file, but no folder.
    Any error of the block becomes a CheckpointError, and `path` is unchanged.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            yield Path(folder, path.name)
            os.replace(Path(folder, path.name), path)
    except Exception as error:  # torch and safetensors also raise other errors than OSError
        reason = getattr(error, "strerror", None) or first_line(error)
        raise CheckpointError(f"cannot write {path}: {reason}") from error


def write_json(content: dict, path: Path) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
