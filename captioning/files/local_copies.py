"""Files of object stores as files on this disk: fetched whole, once, and again when they change."""

import shutil
from collections.abc import Iterable
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Union

from filelock import FileLock

from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key
from captioning.files.writing import atomic_write, refusals_told, replace
from captioning.runtime.errors import UserError

AT_ONCE = 8  # pieces that are asked for at a time


def local(name: Union[str, PathLike]) -> Path:
    """A path as it is; of a file in a store that of its copy in the cache. Raises UserError."""
    name = str(name)
    return _copied(name, {"": stores.stamp(name)}) if _is_stored(name) else Path(name)


def local_folder(address: str, names: Iterable[str]) -> Path:
    """The copy of those files of a store's folder that have these names. Raises UserError."""
    address = address.rstrip("/")
    return _copied(address, {name: stores.stamp(f"{address}/{name}") for name in names})


def located(folder: str, name: str) -> Path:
    """The path of a file that a folder, on disk or in a store, has under a name; see `local`."""
    return local(stores.joined(folder, name))


def _is_stored(name: str) -> bool:
    if stores.is_store(name):
        stores.check_address(name)
        return True
    return False


def _copied(address: str, files: dict[str, list]) -> Path:
    """The copy of a file, whose name is "", or of a folder's files, by their stamps."""
    name = PurePosixPath(address).name
    kept = cache_folder() / "stored" / cache_key(address, 16)
    copy = kept / cache_key(repr(sorted(files.items())), 16) / name
    if copy.exists():
        return copy
    with refusals_told(copy):
        kept.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{kept}.lock"):
            if copy.exists():
                return copy
            for earlier in kept.iterdir():  # of other versions, or begun and never ended
                shutil.rmtree(earlier)
            begun = copy.parent.with_name(".begun")
            begun.mkdir()
            for within, stamp in files.items():
                source = f"{address}/{within}" if within else address
                fetch(source, begun / name / within if within else begun / name, stamp)
            replace(begun, copy.parent)
    return copy


def fetch(address: str, path: Path, stamp: list) -> None:
    """Copy a file of a store, of that stamp, to `path`, which appears when it is whole.

    Raises UserError, also where the file is another one by the end of it.
    """
    size = stamp[0]
    if size is None:
        raise UserError(f"{address}: its server does not tell its size, nor serve parts of it")
    with refusals_told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            for first in range(0, size, AT_ONCE * stores.PIECE):
                last = min(first + AT_ONCE * stores.PIECE, size)
                starts = range(first, last, stores.PIECE)
                wanted = [(address, at, min(stores.PIECE, last - at)) for at in starts]
                for piece in stores.spans(wanted):
                    if isinstance(piece, UserError):
                        raise piece
                    file.write(piece)
            if stores.stamp(address) != stamp:
                raise UserError(f"{address}: it was replaced while it was read: try again")
