"""Files that appear when they are whole and on disk, whatever stops the program on the way."""

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
    """A file to write, which takes the name of `path` when the block has ended well.

    Until then it has another name, in the folder `within` of the same disk or else beside `path`,
    and what was at `path` is as it was. Raises OSError, also where `path` is a folder.
    """
    # Machines that share a disk may have processes of one number.
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
def held(path: Path) -> Iterator[None]:
    """Keep others who hold `path` waiting; it may be replaced or removed meanwhile.

    Where there is none, an empty one is made. Raises OSError.
    """
    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                current = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except FileNotFoundError:
                current = False
            if current:  # not what another one has replaced or removed while this one waited
                yield
                return


def replace(temporary: Path, path: Path) -> None:
    """Give a file or folder the name of a checkpoint, file or folder, which is gone then. OSError.

    Where either is a folder, which cannot be done at once, nothing has the name for a moment.
    """
    if path.is_dir() or (temporary.is_dir() and path.exists()):
        remove(path)
    os.replace(temporary, path)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there; half a folder never has its name. Raises OSError."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f".{path.name.lstrip('.')}.removed{SUFFIX}")
    if temporary.exists():
        shutil.rmtree(temporary)
    os.replace(path, temporary)
    shutil.rmtree(temporary)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks refuse it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_writes(folder: Path) -> Iterator[Path]:
    """What a killed program had begun to write in a folder and those within it."""
    return folder.rglob(f".*{SUFFIX}")


def require_folder(folder: Path) -> None:
    """Make a folder, and a file in it, as writing will later; raises UserError where that fails."""
    write_text("", folder / ".writable")
    (folder / ".writable").unlink(missing_ok=True)


@contextlib.contextmanager
def refusals_told(path: Path) -> Iterator[None]:
    """Make a disk's refusal of `path` a UserError, the one line that a user can mend."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def replace_text(text: str, path: Path) -> None:
    """Write a UTF-8 file that is whole or not there, in a folder that is, without a sync.

    Raises OSError. What a kill leaves has a fixed name: the next call for `path` takes it away.
    """
    temporary = path.with_name(f".{path.name}{SUFFIX}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_text(text: str, path: Path) -> None:
    """Write a UTF-8 file, in a folder made if need be, that appears when it is whole.

    Raises UserError, with what was there left as it was.
    """
    with refusals_told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(text.encode("utf-8", errors="backslashreplace"))


def write_json(content: Any, path: Path) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", path)


def json_line(entry: Any) -> bytes:
    """One line of JSON. A file name that is no UTF-8 is escaped, and comes back as it was."""
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(entry).encode() + b"\n"


def write_lines(path: Path, entries: Iterable[Any], within: Optional[Path] = None) -> None:
    """Write a line of JSON for each entry; see `staged`. Raises OSError."""
    with atomic_write(path, within) as file:
        file.writelines(map(json_line, entries))
