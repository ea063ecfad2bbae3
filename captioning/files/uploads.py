"""Files written to object stores: there under their names when they are whole, and not before."""

import contextlib
import os
from pathlib import Path
from typing import Any, Callable

from captioning.files.stores import stamp, system_of, tried


def upload(path: Path, address: str) -> list[Any]:
    """Write a file of this disk to a store; its stamp there. Raises UserError."""

    def ask() -> int:
        system, place = system_of(address)
        system.put_file(str(path), place)
        return os.path.getsize(path)

    return _written(address, ask)


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


def _written(address: str, ask: Callable[[], int]) -> list[Any]:
    """Ask for it until the store has a file of as many bytes as the answer says."""

    def ask_and_look() -> list[Any]:
        size, found = ask(), stamp(address)
        if found[0] != size:
            raise OSError("another number of bytes")
        return found

    return tried(address, ask_and_look)
