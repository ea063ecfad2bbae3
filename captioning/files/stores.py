"""Files in object stores, read through fsspec in parts, beside those on disk.

A store's own library finds the credentials. They are in no address, and so in no log or error.
"""

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Callable, Optional, TypeVar
from urllib.parse import urlsplit

from captioning.runtime.errors import UserError

T = TypeVar("T")

# The schemes of addresses, and the library that fsspec needs for each.
LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "https": "aiohttp"}
PAGE = 1000  # names that S3 gives at once
PIECE = 1 << 22  # bytes that are read at once of a file that is read from end to end
TRIES = 6
PAUSE_S = 0.5  # after the first failure; each further one is twice as long


class StoreError(UserError):
    """A store that does not answer, or refuses: no fault of the one file that was asked for."""


class Missing(UserError):
    """A store has no file of this name."""


def is_store(address: str) -> bool:
    scheme, parted, _ = address.partition("://")
    return bool(parted) and scheme in LIBRARIES


def has_folders(address: str) -> bool:
    """Whether it is in a store that can be listed and written, as no server of https can."""
    return is_store(address) and not address.startswith("https:")


def check_address(address: str) -> None:
    """Raise UserError for what would put a secret into everything that names the file."""
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query:
        raise UserError(
            f"{without_secrets(address)}: an address with a user or a query may hold a secret; "
            f"give credentials as {LIBRARIES[parts.scheme]} finds them, in the environment or its "
            "own files"
        )


def without_secrets(address: str) -> str:
    """An address as it may be shown: without its user, query and fragment. A path as it is."""
    if "://" not in address:
        return address
    from BLIP.weights.download import without_secrets  # needs BLIP's libraries

    return without_secrets(address)


def spans(parts: Sequence[tuple[str, int, int]]) -> list[Any]:
    """The bytes of (address, first byte, number of bytes) of one store, asked for all at once.

    In the place of what cannot be had is the UserError that says so; others are not held up by it.
    """
    found: list[Any] = [None] * len(parts)

    def ask() -> None:
        left = [place for place, data in enumerate(found) if data is None]
        system, _ = system_of(parts[left[0]][0])
        paths, starts, counts = zip(*(parts[place] for place in left))
        ends = [start + count for start, count in zip(starts, counts)]
        names = [system._strip_protocol(path) for path in paths]
        answers = system.cat_ranges(names, list(starts), ends, on_error="return")
        problem = None
        for place, answer in zip(left, answers):
            if isinstance(answer, Exception):
                found[place] = _refusal(parts[place][0], answer)
                problem = problem if found[place] else answer
            elif len(answer) == parts[place][2]:
                found[place] = answer
            else:
                problem = OSError("another number of bytes")
        if problem is not None:
            raise problem

    if parts:
        try:
            tried(parts[0][0], ask)
        except StoreError as error:
            found = [error if data is None else data for data in found]
    return found


def span(address: str, first: int, count: int) -> bytes:
    """So many bytes of a file, on disk or in a store. Raises UserError."""
    if is_store(address):
        (found,) = spans([(address, first, count)])
        if isinstance(found, UserError):
            raise found
        return found
    try:
        with opened(address) as file:
            file.seek(first)
            data = file.read(count)
    except OSError as error:
        raise UserError(f"{address}: cannot be read: {error.strerror or error}") from error
    if len(data) < count:
        raise UserError(f"{address}: it ends before byte {first + count}: it has changed")
    return data


def whole(address: str) -> bytes:
    """All bytes of a file, on disk or in a store. Raises UserError, OSError of one on disk."""
    if not is_store(address):
        return Path(address).read_bytes()

    def ask() -> bytes:
        system, path = system_of(address)
        return system.cat_file(path)

    return tried(address, ask)


def joined(folder: str, name: str) -> str:
    """The address of a file that a folder, on disk or in a store, has under a name."""
    if is_store(name):
        check_address(name)
        return name
    within = is_store(folder) and not os.path.isabs(name)
    return f"{folder.rstrip('/')}/{name}" if within else str(Path(folder, name))


def listed(folder: str, recursive: bool) -> Iterator[str]:
    """Yield the addresses of a folder's files, in the order of their names. Raises UserError.

    S3 is asked for a page of a thousand after the other. The others' libraries list all at once.
    """
    if folder.startswith("http"):
        raise UserError(f"{folder}: a server of https has no folders: name its files in a list")
    scheme, _, place = folder.rstrip("/").partition("://")
    if scheme == "s3":
        names = _s3_names(folder, place, recursive)
    else:

        def ask() -> list[str]:
            system, path = system_of(folder)
            return sorted(system.find(path, maxdepth=None if recursive else 1))

        names = iter(tried(folder, ask))
    return (f"{scheme}://{name}" for name in names)


def _s3_names(folder: str, place: str, recursive: bool) -> Iterator[str]:
    bucket, _, within = place.partition("/")
    asked = {"Bucket": bucket, "Prefix": f"{within}/" if within else "", "MaxKeys": PAGE}
    if not recursive:
        asked["Delimiter"] = "/"
    while True:
        page = tried(folder, lambda: system_of(folder)[0].call_s3("list_objects_v2", **asked))
        for found in page.get("Contents", ()):
            if not found["Key"].endswith("/"):  # what some programs leave in place of a folder
                yield f"{bucket}/{found['Key']}"
        if not page.get("IsTruncated"):
            return
        asked["ContinuationToken"] = page["NextContinuationToken"]


def check_can_hold(what: str, place: str) -> None:
    """Raise UserError for an address where nothing can be written."""
    if has_folders(place):
        check_address(place)
        return
    scheme, colon, _ = place.partition(":/")
    if colon and scheme in LIBRARIES:  # a path has one slash where an address had two
        raise UserError(
            f"{what} is on {scheme}; it has to be on a disk or in a bucket, as in s3://BUCKET/NAME"
        )


def check_names_file(what: str, place: str) -> None:
    """Raise UserError also for an address that names no file."""
    check_can_hold(what, place)
    if has_folders(place) and (place.endswith("/") or not urlsplit(place).path):
        raise UserError(f"{what} is {place}; it has to name a file, as s3://BUCKET/NAME")


def stamp(address: str) -> list[Any]:
    """Size in bytes, and what differs when the file is written anew. Raises UserError.

    Missing where a store has no file of the name, and may have a folder.
    """
    if is_store(address):

        def ask() -> list[Any]:
            system, path = system_of(address)
            known = system.info(path)
            if known["type"] == "directory":
                raise FileNotFoundError
            return _stamp_of(known)

        return tried(address, ask)
    try:
        found = os.stat(address)
    except OSError as error:
        raise UserError(f"{address}: cannot be read: {error.strerror}") from None
    return [found.st_size, found.st_mtime_ns]


def _stamp_of(known: Mapping[str, Any]) -> list[Any]:
    names = ("ETag", "etag", "LastModified", "last_modified", "Last-Modified", "updated")
    return [known["size"], str(next((known[n] for n in names if known.get(n)), "")).strip('"')]


def stamps(folder: str) -> dict[str, list[Any]]:
    """The `stamp` of each file in a store's folder and those within, by its name there.

    Nothing where there is no such folder. Raises UserError, also for a name that leads out of it.
    """

    def ask() -> dict[str, list[Any]]:
        system, path = system_of(folder.rstrip("/"))
        try:
            found = system.find(path, detail=True)
        except FileNotFoundError:
            return {}
        # A name that ends in a slash is what some programs leave in place of a folder.
        files = {name: of for name, of in found.items() if of["type"] == "file" and name[-1] != "/"}
        return {name[len(path) + 1 :]: _stamp_of(of) for name, of in files.items() if name != path}

    found = tried(folder, ask)
    for name in found:
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise UserError(f"{folder}: it holds {name!r}, which no folder on disk can")
    return found


def opened(address: str) -> BinaryIO:
    """A file to read, on disk or in a store, in which one may seek. Raises UserError."""
    if is_store(address):
        return io.BufferedReader(_Stored(address), PIECE)
    try:
        return open(address, "rb")
    except OSError as error:
        raise UserError(f"{address}: cannot be read: {error.strerror}") from None


class _Stored(io.RawIOBase):
    """A file of a store, of which each read is tried again."""

    def __init__(self, address: str):
        self.address, self.place = address, 0
        self.size = stamp(address)[0]
        if self.size is None:
            raise UserError(f"{address}: its server does not tell its size, nor serve parts of it")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.size}
        self.place = offset + base[whence]
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer) -> int:
        count = max(min(len(buffer), self.size - self.place), 0)
        if count:
            buffer[:count] = span(self.address, self.place, count)
        self.place += count
        return count


def system_of(address: str) -> tuple[Any, str]:
    """The file system, that of this process, and the path within it."""
    import fsspec

    web = _web(address)
    more = {"get_client": web.client} if web else {}
    try:
        return fsspec.core.url_to_fs(address, use_listings_cache=False, **more)
    except ImportError:
        raise _missing_library(address) from None


def _web(address: str) -> Optional[ModuleType]:
    """The module `web` for an address of https, None for others. Raises UserError."""
    if LIBRARIES[address.partition("://")[0]] != "aiohttp":
        return None
    try:
        from captioning.files import web
    except ImportError:
        raise _missing_library(address) from None
    return web


def _missing_library(address: str) -> UserError:
    library = LIBRARIES[address.partition("://")[0]]
    return UserError(f"{address}: needs the {library} library: pip install {library}")


def tried(address: str, ask: Callable[[], T]) -> T:
    """Ask, and ask again after a pause where a store is busy or broken. Raises UserError.

    A library's error may quote what it has sent: neither it nor its words are passed on.
    """
    web = _web(address)
    patience = web and web.patience_with(address)
    if patience and not patience.allows():
        raise StoreError(f"{address}: its server does not answer: try again in a minute")
    for attempt in range(1, TRIES + 1):
        if attempt > 1:
            time.sleep(PAUSE_S * 2 ** (attempt - 2))
        try:
            found = ask()
        except UserError:
            raise
        except Exception as error:
            problem = web.cause(error) if web else error
        else:
            if patience:
                patience.end(None)
            return found
        if refusal := _refusal(address, problem):
            if patience:
                patience.end(None)
            raise refusal
        if patience and patience.is_over(attempt, problem):
            break
    if patience:
        patience.end(problem)
    raise StoreError(
        f"{address}: asked {attempt} times in vain ({type(problem).__name__}): check the address "
        "and the network, then give the same command again"
    )


def _refusal(address: str, error: Exception) -> Optional[UserError]:
    """What to raise for an answer that will stay the same; None where it may not."""
    web = _web(address)
    if isinstance(error, FileNotFoundError):
        return Missing(f"{address}: no such file or bucket")
    if web and isinstance(error, web.Refused):
        return UserError(f"{address}: {error}")
    denied = isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403)
    if denied or type(error).__name__ == "NoCredentialsError":
        return StoreError(
            f"{address}: not allowed: give credentials as "
            f"{LIBRARIES[address.partition('://')[0]]} finds them"
        )
    return None
