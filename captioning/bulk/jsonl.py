"""Lines of JSON, read one at a time, and written as a file that appears when it is whole."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

from captioning.files.writing import staged


def encode(entry: Any) -> bytes:
    """One line. A file name that is no UTF-8 is escaped, and comes back as it was."""
    try:
        return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(entry).encode() + b"\n"


def printable(text: str) -> str:
    """The text with what is no UTF-8, in a file name, written out."""
    return text.encode(errors="backslashreplace").decode()


def write(path: Path, entries: Iterable[Any]) -> None:
    """Write a line for each entry. Raises OSError."""
    with staged(path) as file:
        file.writelines(map(encode, entries))


def read(path: Path) -> Iterator[Optional[dict[str, Any]]]:
    """The object of each line, None for a line that is none; nothing where there is no file."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for text in file:
            yield decode(text)


def decode(text: bytes) -> Optional[dict[str, Any]]:
    """The object of a line; None where it was cut off or is something else."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and text.endswith(b"\n") else None
