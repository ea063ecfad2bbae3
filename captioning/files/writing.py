"""Writes files atomically: a file appears under its name only when it is complete and synced."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from captioning.runtime.errors import UserError

SUFFIX = ".staged"  # of temporary files and folders


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file to write; rename it to `path` when the block ends without an error.

    Raises OSError, also if `path` is a folder.
    """
    # The random part is needed because machines that share a disk may have equal process ids.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems do not support it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished_writes(folder: Path) -> Iterator[Path]:
    """Return an iterator over the temporary files that killed programs left in a folder.

    The iterator also looks into subfolders.
    """
    return folder.rglob(f".*{SUFFIX}")


@contextlib.contextmanager
def user_errors(path: Any) -> Iterator[None]:
    """Turn an OSError into a UserError that names `path`, a path or an address."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def replace_text(text: str, path: Path) -> None:
    """Write a UTF-8 file atomically, in an existing folder, without a sync. Raises OSError.

    The temporary file has a fixed name: after a kill, the next call for `path` overwrites it.
    """
    temporary = path.with_name(f".{path.name}{SUFFIX}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_text(text: str, path: Path) -> None:
    """Write a UTF-8 file atomically; create its folder if necessary.

    Lone surrogates are escaped. Raises UserError. After an error the old file is unchanged.
    """
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(text.encode("utf-8", errors="backslashreplace"))


def write_json(content: Any, path: Path) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", path)


def json_line(entry: Any) -> bytes:
    """Return one line of JSON. Names that are not UTF-8 are escaped; json.loads restores them."""
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(entry).encode() + b"\n"
