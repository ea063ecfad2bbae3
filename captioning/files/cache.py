"""Finds the cache folder, and keeps local copies of files in object stores there.

A copy appears when it is complete, and is downloaded again when the stored file has changed.
fsspec's `filecache` is not used for three reasons: it does not notice that a file is replaced
during the download, two processes may write the same copy, and old versions stay on the disk.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Optional

from captioning.files import stores
from captioning.files.reading import StrPath
from captioning.files.writing import atomic_write, locked, replace, user_errors
from captioning.runtime.errors import UserError

AT_ONCE = 8  # chunks downloaded concurrently, and held in memory


def cache_folder(folder: Optional[Path] = None) -> Path:
    """Return `folder`, else `smile` in XDG_CACHE_HOME or ~/.cache. The folder need not exist.

    Raises UserError if there is no home folder.
    """
    if folder is not None:
        return folder
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smile"
    except RuntimeError as error:  # HOME is not set, and the user is unknown to the system
        raise UserError("the home folder is unknown; set XDG_CACHE_HOME to a folder") from error


def cache_key(text: str, length: int = 64) -> str:
    """Return a name for a cache file: the first `length` hex digits of the SHA-256 of a text.

    text: may be a path with bytes that are not UTF-8.
    """
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:length]


def local(name: StrPath) -> Path:
    """Return a path on disk: `name`, or of a copy if `name` is in a store. Raises UserError.

    If a name has a "*", all matching files are copied, and a pattern that matches the copies is
    returned.
    """
    name = os.path.expanduser(name)
    if not stores.is_store(name):
        return Path(name)
    if "*" in name:
        folder = name.partition("*")[0].rpartition("/")[0]
        names = [found[len(folder) + 1 :] for found in stores.matching(name)]
        return local_folder(folder, names, requested=name) / name[len(folder) + 1 :]
    stores.check_address(name)
    return _local_copy(name, {"": stores.stamp(name)}, name)


def local_path_in(folder: str, name: str) -> Path:
    """Return the local path of a file in a folder, on disk or in a store; see `local`."""
    return local(stores.join(folder, name))


def local_folder(address: str, names: Iterable[str], requested: Optional[str] = None) -> Path:
    """Return a folder with copies of the files `names` of a store's folder. Raises UserError.

    requested: see `_local_copy`; by default the address.
    """
    address = address.rstrip("/")
    files = {name: stores.stamp(f"{address}/{name}") for name in names}
    return _local_copy(address, files, requested or address)


def _local_copy(address: str, files: dict[str, stores.Stamp], requested: str) -> Path:
    """Return the path of a local copy of a store's folder, or of a single file. Raises UserError.

    files: {name in the folder: stamp}; {"": stamp} for a single file. requested: the address or
    pattern that the user gave. A new copy replaces the earlier copies of the same request.
    """
    name = PurePosixPath(address).name
    kept = cache_folder() / "stored" / cache_key(requested, 16)
    copy = kept / cache_key(repr(sorted(files.items())), 16) / name
    if copy.exists():
        return copy
    with user_errors(copy):
        kept.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{kept}.lock")):
            if copy.exists():  # another process has made the copy while this one waited
                return copy
            for earlier in kept.iterdir():  # copies of other versions, or an interrupted download
                shutil.rmtree(earlier)
            unfinished = copy.parent.with_name(".begun")
            unfinished.mkdir()
            for file_name, stamp in files.items():
                fetch(f"{address}/{file_name}".rstrip("/"), unfinished / name / file_name, stamp)
            replace(unfinished, copy.parent)
    return copy


def fetch(address: str, path: Path, stamp: stores.Stamp) -> None:
    """Download the version `stamp` of a file to `path`, which appears when it is complete.

    Raises UserError, also if the file is replaced during the download.
    """
    size = stores.size_of(address, stamp)
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            chunks = [
                stores.ByteRange(address, first, min(stores.CHUNK_BYTES, size - first))
                for first in range(0, size, stores.CHUNK_BYTES)
            ]
            for number in range(0, len(chunks), AT_ONCE):
                for chunk in stores.read_ranges(chunks[number : number + AT_ONCE]):
                    if isinstance(chunk, UserError):
                        raise chunk
                    file.write(chunk)
            if stores.stamp(address) != stamp:
                raise UserError(f"{address}: the file was replaced during the download: try again")
