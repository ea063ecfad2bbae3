"""Reads, writes and lists files on disk and in object stores, through fsspec.

Most functions accept a path or an address. The store's library finds the credentials. Addresses
must not contain credentials, because logs and errors show addresses. A file in a store appears
under its name only when it is complete.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Optional
from urllib.parse import urlsplit

from captioning.files.store_requests import (
    LIBRARIES,
    Missing,
    StoreError,
    call,
    library_of,
    retry,
)
from captioning.files.writing import atomic_write, user_errors
from captioning.runtime.errors import UserError

# [size in bytes or None, a value that changes when the file is written]. A list, as in JSON.
Stamp = list[Any]

READ_ONLY = ("https", "hf")
CHUNK_BYTES = 1 << 22  # bytes per request when a file is read sequentially
THREADS = 16  # requests at once
# Names under which the libraries report a version or a modification time.
VERSIONS = ("ETag", "etag", "blob_id", "LastModified", "last_modified", "Last-Modified", "updated")


class ByteRange(NamedTuple):
    """`count` bytes of a file, from the byte `first` on."""

    address: str
    first: int
    count: int


def is_store(name: str) -> bool:
    scheme, separator, _ = name.partition("://")
    return bool(separator) and scheme in LIBRARIES


def is_bucket_address(name: str) -> bool:
    """Return whether an address is in a bucket, which can be listed and written."""
    return is_store(name) and not name.startswith(READ_ONLY)


def key_of(name: str) -> str:
    """Return what identifies a file that may have several names; a link is a file of its own."""
    return name if is_store(name) else os.path.abspath(name)


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
    if is_bucket_address(place):
        check_address(place)
    elif is_store(place):
        scheme = place.partition("://")[0]
        raise UserError(
            f"{what} is on {scheme}; use a path on a disk or in a bucket, such as s3://BUCKET/NAME"
        )


def without_secrets(address: str) -> str:
    """Return an address without user, query and fragment. A path is returned unchanged."""
    if "://" not in address:
        return address
    from BLIP.download import without_secrets  # imported late: it needs BLIP's libraries

    return without_secrets(address)


def join(folder: str, name: str) -> str:
    """Return the path or address of a name in a folder, unless the name is an address itself."""
    if is_store(name):
        check_address(name)
        return name
    in_store = is_store(folder) and not os.path.isabs(name)
    return f"{folder.rstrip('/')}/{name}" if in_store else str(Path(folder, name))


@contextlib.contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Within the block, turn an OSError into a UserError that names the file, such as Missing."""
    try:
        yield
    except FileNotFoundError:
        raise Missing(f"{name}: no such file: put it there, or correct the path") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or error}") from error


def read_bytes(name: str) -> bytes:
    """Return all bytes of a file. Raises UserError."""
    with read_errors(name):
        return call(name, "cat_file") if is_store(name) else Path(name).read_bytes()


def read_if_any(name: str) -> bytes:
    """Return all bytes of a file; b"" if there is none. Raises UserError."""
    try:
        return read_bytes(name)
    except Missing:
        return b""


def read_range(name: str, first: int, count: int) -> bytes:
    """Return `count` bytes of a file. Raises UserError."""
    if is_store(name):
        data = call(name, "cat_file", start=first, end=first + count)
    else:
        with read_errors(name), open(name, "rb") as file:
            file.seek(first)
            data = file.read(count)
    if len(data) != count:
        raise UserError(f"{name}: the file ends before byte {first + count}: it has changed")
    return data


def open_file(name: str) -> BinaryIO:
    """Open a file for reading with seek. Raises UserError."""
    if not is_store(name):
        with read_errors(name):
            return open(name, "rb")
    file = call(name, "open", "rb", block_size=CHUNK_BYTES, cache_type="readahead")
    if file.size is None:
        raise UserError(f"{name}: its server reports neither its size nor range support")
    fetch = file.cache.fetcher  # sends a request for each read of the file
    file.cache.fetcher = lambda first, end: retry(name, lambda *_: fetch(first, end))
    return file


def list_files(folder: str, recursive: bool) -> Iterator[str]:
    """Yield the addresses of a folder's files, sorted by name. Raises UserError.

    S3 is listed page by page, because its library takes about 1 kB of memory per file of a listing.
    """
    if folder.startswith("http"):
        raise UserError(f"{folder}: an https server has no folders: give a list of its files")
    scheme, _, place = folder.rstrip("/").partition("://")
    if scheme == "s3":
        names = _s3_names(folder, place, recursive)
    else:
        names = sorted(call(folder, "find", maxdepth=None if recursive else 1))
    # `find` returns the file itself if `folder` is one. Some programs create a key that ends in a
    # slash to stand for a folder.
    return (f"{scheme}://{name}" for name in names if name != place and not name.endswith("/"))


def _s3_names(folder: str, place: str, recursive: bool) -> Iterator[str]:
    bucket, _, key = place.partition("/")
    query = {"Bucket": bucket, "Prefix": f"{key}/" if key else ""}
    query["Delimiter"] = "" if recursive else "/"
    page = {"IsTruncated": True}
    while page.get("IsTruncated"):  # some stores leave it out
        page = retry(folder, lambda system, _: system.call_s3("list_objects_v2", **query))
        yield from (f"{bucket}/{item['Key']}" for item in page.get("Contents", ()))
        query["ContinuationToken"] = page.get("NextContinuationToken")


def names_in(folder: str) -> list[str]:
    """Return the names of the files in a folder, unsorted; [] if there is no such folder."""
    with contextlib.suppress(Missing), read_errors(folder):
        if is_store(folder):
            return [name.rpartition("/")[2] for name in list_files(folder, recursive=False)]
        return os.listdir(folder)
    return []


def matching(pattern: str) -> list[str]:
    """Return the addresses of the files that match a pattern with "*", sorted. Raises UserError."""
    check_address(pattern)
    scheme = pattern.partition("://")[0]
    infos = call(pattern, "glob", detail=True).items()
    addresses = sorted(f"{scheme}://{name}" for name, info in infos if info["type"] == "file")
    if not addresses:
        raise Missing(f"{pattern}: no such file or bucket")
    return addresses


def exists(name: str) -> bool:
    """Return whether there is a file. Raises StoreError."""
    return stamp_if_any(name) is not None


def stamp(name: str) -> Stamp:
    """Return the stamp of a file. Raises UserError.

    Raises Missing if a store has no file of this name, even if it has a folder of this name.
    """
    if is_store(name):
        info = call(name, "info")
        if info["type"] == "directory":
            raise Missing(f"{name}: no such file or bucket")
        version = next((info[name] for name in VERSIONS if info.get(name)), "")
        return [info["size"], str(version).strip('"')]
    with read_errors(name):
        state = os.stat(name)
    return [state.st_size, state.st_mtime_ns]


def stamp_if_any(name: str) -> Optional[Stamp]:
    """Return the stamp of a file; None if it is missing or unreadable. Raises StoreError."""
    try:
        return stamp(name)
    except StoreError:
        raise
    except UserError:
        return None


def stamps(folder: str) -> dict[str, Stamp]:
    """Return {address: stamp} of the files in a folder of a store. Raises UserError."""
    return {address: stamp(address) for address in list_files(folder, recursive=True)}


@contextlib.contextmanager
def create(name: str) -> Iterator[BinaryIO]:
    """Open a file to write. It appears when the block ends without an error. Raises UserError.

    A file for a store is first written to a temporary file on disk, then uploaded.
    """
    with user_errors(name):
        if is_store(name):
            with tempfile.NamedTemporaryFile() as file:
                yield file
                file.flush()
                upload(file.name, name)
        else:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(Path(name)) as file:
                yield file


def upload(path: str, address: str) -> None:
    """Upload a file to a store. Raises UserError."""
    retry(address, lambda system, target: system.put_file(path, target))


def put(content: bytes, name: str) -> None:
    """Write a small file. Raises UserError."""
    with create(name) as file:
        file.write(content)


def require_writable(folder: str) -> None:
    """Create a folder and check that it is writable. Raises UserError."""
    put(b"", join(folder, ".writable"))
    remove(join(folder, ".writable"))


def remove(name: str) -> None:
    """Remove a file, if it exists. Raises OSError for the disk, UserError for a store."""
    with contextlib.suppress(FileNotFoundError, Missing):
        call(name, "rm_file") if is_store(name) else os.remove(name)


def remove_folder(folder: str) -> None:
    """Remove a folder, if it exists. Raises OSError for the disk, UserError for a store."""
    with contextlib.suppress(FileNotFoundError, Missing):
        call(folder, "rm", recursive=True) if is_store(folder) else shutil.rmtree(folder)
