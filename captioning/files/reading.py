"""Reads text and JSON files. Each error is one line that names the file."""

import json
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Optional, Union

from captioning.files.stores import read_bytes
from captioning.runtime.errors import UserError

StrPath = Union[str, PathLike]


def read_text(path: StrPath) -> str:
    """Return the text of a UTF-8 file, on disk or in a store, without a byte order mark.

    Raises UserError if the file is missing, unreadable or not UTF-8.
    """
    try:
        return read_bytes(str(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}: convert it") from None


def read_json(path: StrPath) -> Any:
    """Return the value of a JSON file. Raises UserError as `read_text` and `parse_json` do."""
    return parse_json(read_text(path), path)


def parse_json(text: str, path: StrPath, first_line: int = 1) -> Any:
    """Return the value of a JSON text that begins at `first_line` of the file `path`.

    Raises UserError.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f" at line {first_line + error.lineno - 1} ({error.msg})"
    except (RecursionError, ValueError):
        reason = ": it is nested too deeply, or a number has thousands of digits"
    raise UserError(f"{path}: not valid JSON{reason}: correct it")


def parse_json_lines(lines: Iterable[str], path: StrPath) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is not blank; see `parse_json`.

    Callers must not get the lines from str.splitlines, because it also splits at U+2028, which JSON
    allows in strings.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, parse_json(line.rstrip("\n"), path, number)


def read_lines(path: Path) -> Iterator[Optional[dict[str, Any]]]:
    """Yield the JSON object of each line of a file, see `parse_line`; nothing without a file."""
    if path.exists():
        with open(path, "rb") as file:
            yield from map(parse_line, file)


def parse_line(text: bytes) -> Optional[dict[str, Any]]:
    """Return the JSON object of a line; None if the line is cut off or is not an object."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and text.endswith(b"\n") else None
