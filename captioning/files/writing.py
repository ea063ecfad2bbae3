"""Files that appear when they are complete and on disk, even if the program is killed meanwhile."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Optional

from captioning.runtime.errors import UserError

SUFFIX = ".staged"


@contextlib.contextmanager
def atomic_write(path: Path, within: Optional[Path] = None) -> Iterator[BinaryIO]:
    """Open a file to write, which is renamed to `path` when the block ends without an error.

    Until then it has another name, in the folder `within` of the same disk or else beside `path`,
    and `path` is unchanged. Raises OSError, also if `path` is a folder.
    """
    # Machines that share a disk may have processes with the same number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{SUFFIX}")
    temporary = (within or path.parent) / temporary.name
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


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock `path` against other processes; it may be replaced or removed meanwhile.

    An empty file is made if there is none. Raises OSError.
    """
    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                current = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except FileNotFoundError:
                current = False
            if current:  # another process may have replaced or removed it
                yield
                return


def replace(temporary: Path, path: Path) -> None:
    """Rename a file or folder to `path`, replacing a file or folder. Raises OSError.

    If either is a folder this is not atomic: nothing has the name for a moment.
    """
    if path.is_dir() or (temporary.is_dir() and path.exists()):
        remove(path)
    os.replace(temporary, path)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists; a folder is renamed first. Raises OSError."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f".{path.name.lstrip('.')}.removed{SUFFIX}")
    if temporary.exists():
        shutil.rmtree(temporary)
    os.replace(path, temporary)
    shutil.rmtree(temporary)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, if its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks refuse it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished_writes(folder: Path) -> Iterator[Path]:
    """Return the incomplete files that a killed program left in a folder and its subfolders."""
    return folder.rglob(f".*{SUFFIX}")


def require_folder(folder: Path) -> None:
    """Make a folder and try to write a file in it. Raises UserError."""
    write_text("", folder / ".writable")
    (folder / ".writable").unlink(missing_ok=True)


@contextlib.contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError that names `path`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def replace_text(text: str, path: Path) -> None:
    """Write a UTF-8 file atomically, in an existing folder, without a sync.

    Raises OSError. What a kill leaves has a fixed name, which the next call for `path` reuses.
    """
    temporary = path.with_name(f".{path.name}{SUFFIX}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_text(text: str, path: Path) -> None:
    """Write a UTF-8 file atomically, in a folder that is made if it is missing.

    Raises UserError, and then leaves the file as it was.
    """
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(text.encode("utf-8", errors="backslashreplace"))


def write_json(content: Any, path: Path) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", path)


def json_line(entry: Any) -> bytes:
    """Return one line of JSON. File names that are not UTF-8 are escaped and read back the same."""
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(entry).encode() + b"\n"


def write_lines(path: Path, entries: Iterable[Any], within: Optional[Path] = None) -> None:
    """Write a line of JSON for each entry; see `atomic_write`. Raises OSError."""
    with atomic_write(path, within) as file:
        file.writelines(map(json_line, entries))
