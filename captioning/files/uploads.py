"""Writes files to object stores. A file appears under its name only when it is complete."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Callable

from captioning.files.store_requests import Missing, call, retry, system_of
from captioning.files.stores import Stamp, is_store, join, stamp
from captioning.files.writing import atomic_write, require_folder


def upload(path: Path, address: str) -> Stamp:
    """Upload a file to a store; return its stamp in the store. Raises UserError."""
    return _write_verified(
        address, os.path.getsize(path), lambda system, target: system.put_file(str(path), target)
    )


def copy(source: str, address: str, size: int) -> Stamp:
    """Copy a file within a store; return the copy's stamp. size: in bytes. Raises UserError."""
    return _write_verified(
        address, size, lambda system, target: system.cp_file(system._strip_protocol(source), target)
    )


def _write_verified(address: str, size: int, write: Callable[[Any, str], Any]) -> Stamp:
    """Call `write`, and return the file's stamp when the store has `size` bytes; see `retry`.

    write: writes the file; its arguments are fsspec's file system and the path within it.
    """

    def request() -> Stamp:
        write(*system_of(address))
        found = stamp(address)
        if found[0] != size:
            raise OSError("wrong number of bytes")
        return found

    return retry(address, request)


def put(content: bytes, address: str) -> None:
    """Write a small file to a store. Raises UserError."""
    call(address, "pipe_file", content)


@contextlib.contextmanager
def open_to_write(name: str) -> Iterator[BinaryIO]:
    """Open a file to write, on disk or in a store. It appears when the block ends without error.

    A file for a store is first written to a temporary file on disk, then uploaded. Raises OSError
    for the disk, UserError for a store.
    """
    if not is_store(name):
        with atomic_write(Path(name)) as file:
            yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "content")
        with open(path, "wb") as file:
            yield file
        upload(path, name)


def require_writable(folder: str) -> None:
    """Raise UserError if a folder, on disk or in a store, is not writable.

    To test this, an empty file is written and removed.
    """
    if not is_store(folder):
        require_folder(Path(folder))
        return
    put(b"", join(folder, ".writable"))
    remove(join(folder, ".writable"))


def remove(name: str) -> None:
    """Remove a file, if it exists. Raises OSError for the disk, UserError for a store."""
    with contextlib.suppress(FileNotFoundError, Missing):
        if is_store(name):
            call(name, "rm_file")
        else:
            os.remove(name)


def remove_folder(address: str) -> None:
    """Remove a store's folder, if it exists, with many files per request. Raises UserError."""
    with contextlib.suppress(Missing):
        call(address, "rm", recursive=True)
