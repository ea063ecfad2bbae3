"""Finds the cache folder, and keeps local copies of files in object stores there.

A copy appears when it is complete, and is downloaded again when the stored file has changed.
fsspec's `filecache` is not used, because two processes may write the same copy, and old versions
stay on the disk.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Optional

from filelock import FileLock

from captioning.files import stores
from captioning.files.reading import StrPath
from captioning.files.writing import atomic_write, user_errors
from captioning.runtime.errors import UserError


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
    returned. A new copy replaces the earlier copies of the same name.
    """
    name = os.fspath(name)
    if not stores.is_store(name):
        return Path(name)
    stores.check_address(name)
    names = stores.matching(name) if "*" in name else [name]
    files = {each: stores.stamp(each) for each in names}
    start = len(name.partition("*")[0].rpartition("/")[0]) + 1  # of the names in their folder
    kept = cache_folder() / "stored" / cache_key(name, 16)
    copy = kept / cache_key(repr(files), 16)
    with user_errors(copy):
        kept.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{kept}.lock"):  # another process may make the copy
            if not copy.exists():
                for earlier in kept.iterdir():  # of other versions, or an interrupted download
                    shutil.rmtree(earlier)
                unfinished = kept / ".begun"
                for address in files:
                    fetch(address, unfinished / address[start:])
                unfinished.rename(copy)
    return copy / name[start:]


def fetch(address: str, path: Path) -> None:
    """Download a file to `path`, which appears when it is complete.

    Raises UserError, also for a name with "..", which may lead out of the folder of copies.
    """
    if ".." in address.split("/"):
        raise UserError(f"{address}: its name contains .., which is impossible on a disk")
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            stores.call(address, "get_file", file.name)


def download_once(url: str, path: Path, sha256: Optional[str]) -> Path:
    """Return `path`. If it does not exist, first download `url` to it.

    sha256: the hash of the file; None if unknown. Raises UserError.
    """
    if path.exists():
        return path
    from BLIP.download import DownloadError, download  # imported only for a download

    try:
        download(url, path, sha256)
    except DownloadError as error:
        raise UserError(f"{error}; without a network, save {url} as {path}") from error
    return path
