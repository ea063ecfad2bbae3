"""Files that appear when they are whole and on disk, whatever stops the program on the way."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".staged"


@contextlib.contextmanager
def staged(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the name of `path` when the block has ended well.

    Until then it has another name, and what was at `path` is as it was. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks refuse it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def staged_files(folder: Path) -> Iterator[Path]:
    """What a killed program had begun to write in a folder and those within it."""
    return folder.rglob(f".*{SUFFIX}")
