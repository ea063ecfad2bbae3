"""Reads and lists files in object stores through fsspec.

Functions that read a single file also accept a path on disk. The store's library finds the
credentials. Addresses must not contain credentials, because logs and errors show addresses.
"""

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Callable, Optional, TypeVar, Union
from urllib.parse import urlsplit

from captioning.runtime.errors import UserError

T = TypeVar("T")

# {supported scheme: the library that fsspec needs for it}. For hf it is datasets, which installs
# both huggingface_hub, which implements the file system, and aiohttp.
LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "https": "aiohttp", "hf": "datasets"}
PAGE = 1000  # names per page of an S3 listing
PIECE = 1 << 22  # bytes per request when a file is read sequentially

TRIES = 6  # requests in total, before a StoreError
PAUSE_S = 0.5  # after the first failure; doubled after each further failure


class StoreError(UserError):
    """A store does not answer or refuses access. Skipping the requested file would not help."""


class Missing(UserError):
    """A store has no file of this name."""


def is_store(address: str) -> bool:
    scheme, separator, _ = address.partition("://")
    return bool(separator) and scheme in LIBRARIES


def is_bucket_address(address: str) -> bool:
    """Return whether an address is in a bucket (s3, gs, az), which can be listed and written.

    False for https, the hub and paths.
    """
    return is_store(address) and not address.startswith(("https:", "hf:"))


def check_address(address: str) -> None:
    """Raise UserError if an address may contain a secret, because logs and errors show it."""
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query:
        raise UserError(
            f"{without_secrets(address)}: an address with a user or a query may contain a secret; "
            f"give credentials where {_library(address)} finds them, in the environment or its "
            "own files"
        )


def check_can_hold(what: str, place: str) -> None:
    """Raise UserError if `place`, a path or an address, is in a store that cannot be written to.

    what: the name of the setting that contains `place`, for the error.
    """
    scheme, colon, _ = place.partition(":/")
    if is_bucket_address(place):
        check_address(place)
    elif colon and scheme in LIBRARIES:  # matches one slash, too, because Path collapses "//"
        raise UserError(
            f"{what} is on {scheme}; use a path on a disk or in a bucket, such as s3://BUCKET/NAME"
        )


def check_names_file(what: str, place: str) -> None:
    """Like `check_can_hold`. Also raises UserError for an address without a file name."""
    check_can_hold(what, place)
    if is_bucket_address(place) and (place.endswith("/") or not urlsplit(place).path):
        raise UserError(f"{what} is {place}; it has to name a file, such as s3://BUCKET/NAME")


def without_secrets(address: str) -> str:
    """Return an address without user, query and fragment. A path is returned unchanged."""
    if "://" not in address:
        return address
    from BLIP.weights.download import without_secrets  # imported late: it needs BLIP's libraries

    return without_secrets(address)


def join(folder: str, name: str) -> str:
    """Return the path or address of a name in a folder. An address as name is returned as it is."""
    if is_store(name):
        check_address(name)
        return name
    in_store = is_store(folder) and not os.path.isabs(name)
    return f"{folder.rstrip('/')}/{name}" if in_store else str(Path(folder, name))


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[Union[bytes, UserError]]:
    """Read ranges (address, first byte, number of bytes) of one store's files concurrently.

    The result for a range is its bytes, or a UserError if the range cannot be read. A missing file
    does not affect other files. If the store stops answering, the result for every range that has
    not arrived is a StoreError.
    """
    if not ranges:
        return []
    address = ranges[0][0]
    patience = _web(address).patience_with(address)
    if not patience.allows():
        return [_silent(address)] * len(ranges)
    system, _ = system_of(address)
    names, starts, counts = zip(*ranges)
    paths = list(map(system._strip_protocol, names))
    ends = list(map(sum, zip(starts, counts)))
    found = system.cat_ranges(paths, list(starts), ends, on_error="return")
    failed = [
        number
        for number, (data, count) in enumerate(zip(found, counts))
        if not isinstance(data, bytes) or len(data) != count
    ]
    if len(failed) < len(ranges):
        patience.end(None)
    answer: Union[bytes, UserError] = b""
    for number in failed:
        # After a StoreError no more ranges are retried: `Patience` counts the outage as one file.
        if not isinstance(answer, StoreError):
            try:
                answer = read_range(*ranges[number])
            except UserError as error:
                answer = error
        found[number] = answer
    return found


def read_range(address: str, first: int, count: int) -> bytes:
    """Return `count` bytes of a file, on disk or in a store. Raises UserError."""
    if is_store(address):

        def request() -> bytes:
            system, path = system_of(address)
            data = system.cat_file(path, start=first, end=first + count)
            if len(data) != count:
                raise OSError("wrong number of bytes")
            return data

        return retry(address, request)
    try:
        with open_file(address) as file:
            file.seek(first)
            data = file.read(count)
    except OSError as error:
        raise UserError(f"{address}: cannot be read: {error.strerror or error}") from error
    if len(data) < count:
        raise UserError(f"{address}: the file ends before byte {first + count}: it has changed")
    return data


def read_bytes(address: str) -> bytes:
    """Return all bytes of a file. Raises UserError for a store, OSError for the disk."""
    return call(address, "cat_file") if is_store(address) else Path(address).read_bytes()


def read_if_any(address: str) -> bytes:
    """Return all bytes of a file; b"" if there is none. Raises the errors of `read_bytes`."""
    try:
        return read_bytes(address)
    except (FileNotFoundError, Missing):
        return b""


def open_file(address: str) -> BinaryIO:
    """Open a file, on disk or in a store, for reading with seek. Raises UserError."""
    if is_store(address):
        return io.BufferedReader(_StoredFile(address), PIECE)
    try:
        return open(address, "rb")
    except OSError as error:
        raise UserError(f"{address}: cannot be read: {error.strerror}") from None


class _StoredFile(io.RawIOBase):
    """A seekable file in a store. A failed read is retried."""

    def __init__(self, address: str):
        self.address, self.position = address, 0
        self.size = size_of(address, stamp(address))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}
        self.position = offset + base[whence]
        return self.position

    def readinto(self, buffer) -> int:
        count = max(min(len(buffer), self.size - self.position), 0)
        if count:
            buffer[:count] = read_range(self.address, self.position, count)
        self.position += count
        return count


def list_files(folder: str, recursive: bool) -> Iterator[str]:
    """Yield the addresses of a folder's files, sorted by name. Raises UserError.

    S3 is listed page by page to save memory. The libraries of other stores list all files at once.
    """
    if folder.startswith("http"):
        raise UserError(f"{folder}: an https server has no folders: give a list of its files")
    scheme, _, place = folder.rstrip("/").partition("://")
    if scheme == "s3":
        names = _s3_names(folder, place, recursive)
    else:
        names = sorted(call(folder, "find", maxdepth=None if recursive else 1))
    return (f"{scheme}://{name}" for name in names)


def _s3_names(folder: str, place: str, recursive: bool) -> Iterator[str]:
    bucket, _, within = place.partition("/")
    query = {"Bucket": bucket, "Prefix": f"{within}/" if within else "", "MaxKeys": PAGE}
    if not recursive:
        query["Delimiter"] = "/"
    while True:
        page = retry(folder, lambda: system_of(folder)[0].call_s3("list_objects_v2", **query))
        for found in page.get("Contents", ()):
            if not found["Key"].endswith(
                "/"
            ):  # some programs create such a key to stand for a folder
                yield f"{bucket}/{found['Key']}"
        if not page.get("IsTruncated"):
            return
        query["ContinuationToken"] = page["NextContinuationToken"]


def matching(pattern: str) -> list[str]:
    """Return the addresses of the files that match a pattern with "*", sorted. Raises UserError."""
    check_address(pattern)
    scheme = pattern.partition("://")[0]
    found = sorted(f"{scheme}://{name}" for name in call(pattern, "glob"))
    if not found:
        raise _missing(pattern)
    return found


def stamp(address: str) -> list[Any]:
    """Return [size in bytes, a value that changes when the file is written]. Raises UserError.

    Raises Missing if a store has no file of this name, even if it has a folder of this name.
    """
    if is_store(address):
        info = call(address, "info")
        if info["type"] == "directory":
            raise _missing(address)
        return _stamp_of(info)
    try:
        found = os.stat(address)
    except OSError as error:
        raise UserError(f"{address}: cannot be read: {error.strerror}") from None
    return [found.st_size, found.st_mtime_ns]


def size_of(address: str, stamp: Sequence[Any]) -> int:
    """Return the size in a file's stamp. Raises UserError if its server did not report it."""
    if stamp[0] is None:
        raise UserError(f"{address}: its server reports neither its size nor range support")
    return stamp[0]


def stamps(folder: str) -> dict[str, list[Any]]:
    """Return {relative name: stamp} of the files in a store's folder and its subfolders.

    Empty if there is no such folder. Raises UserError, for example for a name with "..", which
    would lead out of the folder.
    """
    folder = folder.rstrip("/")
    try:
        found = call(folder, "find", detail=True)
    except Missing:
        return {}
    path = system_of(folder)[1]
    stamps = {}
    for name, info in found.items():
        # Some programs create a name that ends in a slash to stand for a folder.
        if info["type"] == "file" and name != path and not name.endswith("/"):
            within = name[len(path) + 1 :]
            if not {"", ".", ".."}.isdisjoint(within.split("/")):
                raise UserError(f"{folder}: contains {within!r}, which is impossible on a disk")
            stamps[within] = _stamp_of(info)
    return stamps


def _stamp_of(info: Mapping[str, Any]) -> list[Any]:
    # Names under which the libraries report a version or a modification time.
    names = ("ETag", "etag", "blob_id", "LastModified", "last_modified", "Last-Modified", "updated")
    return [info["size"], str(next((info[n] for n in names if info.get(n)), "")).strip('"')]


def system_of(address: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path of the address within it."""
    import fsspec

    settings = {"get_client": _web(address).client} if _library(address) == "aiohttp" else {}
    try:
        return fsspec.core.url_to_fs(address, use_listings_cache=False, **settings)
    except ImportError:
        raise _missing_library(address) from None


def _web(address: str) -> ModuleType:
    """Return the module `web`. Raises UserError without aiohttp, which all LIBRARIES install."""
    try:
        from captioning.files import web
    except ImportError:
        raise _missing_library(address) from None
    return web


def _library(address: str) -> str:
    return LIBRARIES[address.partition("://")[0]]


def _missing_library(address: str) -> UserError:
    library = _library(address)
    return UserError(f"{address}: needs the {library} library: pip install {library}")


def call(address: str, method: str, *arguments: Any, **settings: Any) -> Any:
    """Call a method of the file system with the path of `address`; see `retry`."""

    def request() -> Any:
        system, path = system_of(address)
        return getattr(system, method)(path, *arguments, **settings)

    return retry(address, request)


def retry(address: str, request: Callable[[], T]) -> T:
    """Return `request()`. Retry it after pauses, unless the file is missing or access is refused.

    Raises UserError. The library's error may contain credentials, so that it is neither chained
    nor quoted.
    """
    web = _web(address)
    patience = web.patience_with(address)
    if not patience.allows():
        raise _silent(address)
    for attempt in range(1, TRIES + 1):
        if attempt > 1:
            time.sleep(PAUSE_S * 2 ** (attempt - 2))
        try:
            result = request()
        except UserError:
            raise
        except Exception as error:
            problem = web.cause(error)
        else:
            patience.end(None)
            return result
        if isinstance(problem, FileNotFoundError):
            refusal: Optional[UserError] = _missing(address)
        elif isinstance(problem, web.Refused):
            refusal = UserError(f"{address}: {problem}")
        elif _is_denied(problem):
            refusal = StoreError(
                f"{address}: not allowed: give credentials where {_library(address)} finds them"
            )
        else:
            refusal = None
        if refusal:
            patience.end(None)
            raise refusal
        if address.startswith("http") and patience.is_over(attempt, problem):
            break
    patience.end(problem)
    raise StoreError(
        f"{address}: {attempt} requests failed ({type(problem).__name__}): check the address "
        "and the network, then run the same command again"
    )


def _is_denied(error: Exception) -> bool:
    no_credentials = type(error).__name__ == "NoCredentialsError"
    answer = getattr(error, "response", None)  # set in huggingface_hub's errors
    status = getattr(error, "status", None) or getattr(answer, "status_code", None)
    return isinstance(error, PermissionError) or status in (401, 403) or no_credentials


def _silent(address: str) -> StoreError:
    return StoreError(f"{address}: its server does not answer: try again in a minute")


def _missing(address: str) -> Missing:
    return Missing(f"{address}: no such file or bucket")
