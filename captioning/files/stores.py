"""Reads and lists files in object stores through fsspec.

Functions that read a single file also accept a path on disk. The store's library finds the
credentials. Addresses must not contain credentials, because logs and errors show addresses.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Union
from urllib.parse import urlsplit

from captioning.files.store_requests import (
    LIBRARIES,
    Missing,
    StoreError,
    call,
    library_of,
    no_answer,
    no_such_file,
    retry,
    system_of,
    web_module,
)
from captioning.runtime.errors import UserError

# [size in bytes or None, a value that changes when the file is written]. A list, as in JSON.
Stamp = list[Any]

PAGE = 1000  # names per page of an S3 listing
CHUNK_BYTES = 1 << 22  # bytes per request when a file is read sequentially


class ByteRange(NamedTuple):
    """`count` bytes of a file, from the byte `first` on."""

    address: str
    first: int
    count: int


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
            f"give credentials where {library_of(address)} finds them, in the environment or its "
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


@contextlib.contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Within the block, turn an OSError into a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or error}") from error


def read_ranges(ranges: Sequence[ByteRange]) -> list[Union[bytes, UserError]]:
    """Read ranges of one store's files concurrently.

    The result for a range is its bytes, or a UserError if the range cannot be read. A missing file
    does not affect other files. If the store stops answering, the result for every range that has
    not arrived is a StoreError.
    """
    if not ranges:
        return []
    address = ranges[0][0]
    breaker = web_module(address).circuit_breaker_of(address)
    if not breaker.allows_request():
        return [no_answer(address)] * len(ranges)
    system, _ = system_of(address)
    paths = [system._strip_protocol(each.address) for each in ranges]
    starts = [each.first for each in ranges]
    ends = [each.first + each.count for each in ranges]
    found = system.cat_ranges(paths, starts, ends, on_error="return")
    failed = [
        number
        for number, (data, each) in enumerate(zip(found, ranges))
        if not isinstance(data, bytes) or len(data) != each.count
    ]
    if len(failed) < len(ranges):
        breaker.record(None)
    answer = b""
    for number in failed:
        # After a StoreError no more ranges are retried, so that the outage counts as one file.
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
    with read_errors(address), open_file(address) as file:
        file.seek(first)
        data = file.read(count)
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
        return io.BufferedReader(_StoredFile(address), CHUNK_BYTES)
    with read_errors(address):
        return open(address, "rb")


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
    bucket, _, folder_key = place.partition("/")
    query = {"Bucket": bucket, "Prefix": f"{folder_key}/" if folder_key else "", "MaxKeys": PAGE}
    if not recursive:
        query["Delimiter"] = "/"
    while True:
        page = retry(folder, lambda: system_of(folder)[0].call_s3("list_objects_v2", **query))
        for found in page.get("Contents", ()):
            # Some programs create a key that ends in a slash to stand for a folder.
            if not found["Key"].endswith("/"):
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
        raise no_such_file(pattern)
    return found


def stamp(address: str) -> Stamp:
    """Return the stamp of a file, on disk or in a store. Raises UserError.

    Raises Missing if a store has no file of this name, even if it has a folder of this name.
    """
    if is_store(address):
        info = call(address, "info")
        if info["type"] == "directory":
            raise no_such_file(address)
        return _stamp_of(info)
    with read_errors(address):
        found = os.stat(address)
    return [found.st_size, found.st_mtime_ns]


def size_of(address: str, stamp: Stamp) -> int:
    """Return the size in a file's stamp. Raises UserError if its server did not report it."""
    if stamp[0] is None:
        raise UserError(f"{address}: its server reports neither its size nor range support")
    return stamp[0]


def stamps(folder: str) -> dict[str, Stamp]:
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
            relative = name[len(path) + 1 :]
            if not {"", ".", ".."}.isdisjoint(relative.split("/")):
                raise UserError(f"{folder}: contains {relative!r}, which is impossible on a disk")
            stamps[relative] = _stamp_of(info)
    return stamps


def _stamp_of(info: Mapping[str, Any]) -> Stamp:
    # Names under which the libraries report a version or a modification time.
    names = ("ETag", "etag", "blob_id", "LastModified", "last_modified", "Last-Modified", "updated")
    version = next((info[name] for name in names if info.get(name)), "")
    return [info["size"], str(version).strip('"')]
