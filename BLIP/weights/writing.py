"""Writes the files of exports and conversions, atomically or as JSON."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from BLIP.weights.checkpoint import CheckpointError
from BLIP.weights.safe_load import first_line


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. Its file replaces `path` if the `with` block succeeds.

    Any error of the block becomes a CheckpointError, and `path` is unchanged.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        yield temporary
        os.replace(temporary, path)
    except Exception as error:  # torch and safetensors also raise other errors than OSError
        raise CheckpointError(f"cannot write {path}: {first_line(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(content: dict, path: Path) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
