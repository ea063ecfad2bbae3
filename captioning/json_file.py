"""Text and JSON files: read or refused in one line, written whole or not at all."""

import json
from pathlib import Path
from typing import Any

from captioning.durable import staged
from captioning.errors import UserError


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file (a byte order mark is dropped).

    Raises UserError if the file is missing, unreadable, empty or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: put it there, or correct what names it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}: convert it") from None
    if not text.strip():
        raise UserError(f"{path}: the file is empty: download or write it again")
    return text


def parse_json(text: str, path: Path, first_line: int = 1) -> Any:
    """Return the value of a JSON text that begins at `first_line` of the file `path`."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except _TwiceError as error:
        raise UserError(f"{path}: {error.args[0]!r} occurs twice in an object: keep one") from None
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise UserError(f"{path}: not valid JSON at line {line} ({error.msg}): mend it") from None
    except RecursionError:
        raise UserError(f"{path}: not valid JSON: it is nested too deeply") from None
    except ValueError:
        raise UserError(f"{path}: not valid JSON: a number has thousands of digits") from None


class _TwiceError(Exception):
    """Of a key of which the value would silently be the last."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in found if names.count(name) > 1))
    return found


def require_folder(folder: Path) -> None:
    """Make a folder, and a file in it, as writing will later; raises UserError where that fails."""
    write_text("", folder / ".writable")
    (folder / ".writable").unlink(missing_ok=True)


def write_text(text: str, path: Path) -> None:
    """Write a UTF-8 file, in a folder made if need be, that appears when it is whole.

    Raises UserError, with what was there left as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path) as file:
            file.write(text.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def write_json(content: Any, path: Path) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", path)
