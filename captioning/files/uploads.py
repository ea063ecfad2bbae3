"""Files written to object stores: there under their names when they are whole, and not before."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Callable

from captioning.files.stores import is_store, joined, stamp, stamps, system_of, tried
from captioning.files.writing import atomic_write, require_folder


def upload(path: Path, address: str) -> list[Any]:
    """Write a file of this disk to a store; its stamp there. Raises UserError."""

    def ask() -> int:
        system, place = system_of(address)
        system.put_file(str(path), place)
        return os.path.getsize(path)

    return _written(address, ask)


def put(content: bytes, address: str) -> None:
    """Write a small file to a store. Raises UserError."""

    def ask() -> None:
        system, place = system_of(address)
        system.pipe_file(place, content)

    tried(address, ask)


@contextlib.contextmanager
def written(name: str) -> Iterator[BinaryIO]:
    """A file to write, on disk or in a store, which has its name once the block has ended well.

    Raises OSError of this disk, where one for a store is collected, UserError of a store.
    """
    if not is_store(name):
        with atomic_write(Path(name)) as file:
            yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "whole")
        with open(path, "wb") as file:
            yield file
        upload(path, name)


def require_writable(folder: str) -> None:
    """Write a file in a folder, on disk or in a store, and remove it. Raises UserError."""
    if not is_store(folder):
        require_folder(Path(folder))
        return
    put(b"", joined(folder, ".writable"))
    remove(joined(folder, ".writable"))


def copy(source: str, address: str, size: int) -> list[Any]:
    """Let a store copy a file of its own of so many bytes; the copy's stamp. Raises UserError."""

    def ask() -> int:
        system, place = system_of(source)
        system.cp_file(place, system._strip_protocol(address))
        return size

    return _written(address, ask)


def remove(address: str) -> None:
    """Remove a file of a store, if it is there. Raises UserError."""

    def ask() -> None:
        system, place = system_of(address)
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(place)

    tried(address, ask)


def remove_folder(address: str) -> None:
    """Remove the files of a store's folder, many with one request. Raises UserError."""
    names = [joined(address, name) for name in stamps(address)]

    def ask() -> None:
        system, _ = system_of(address)
        with contextlib.suppress(FileNotFoundError):
            system.rm([system._strip_protocol(name) for name in names])

    if names:
        tried(address, ask)


def _written(address: str, ask: Callable[[], int]) -> list[Any]:
    """Ask for it until the store has a file of as many bytes as the answer says."""

    def ask_and_look() -> list[Any]:
        size, found = ask(), stamp(address)
        if found[0] != size:
            raise OSError("another number of bytes")
        return found

    return tried(address, ask_and_look)
