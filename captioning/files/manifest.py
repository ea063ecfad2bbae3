"""Writes and verifies manifests, which detect damaged files.

A manifest is a JSON file with the size and SHA-256 of a large file, or of each file of a folder. It
is in the same folder as that file or folder, and has the same name with the suffix .json.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from captioning.files.writing import write_json
from captioning.runtime.errors import UserError

CHUNK_BYTES = 1 << 22  # bytes read at once


class HashedFile:
    """Wraps a file that is written sequentially, and computes the size and hash of the content.

    problem: the OSError of a failed write. The library that writes may replace this error by a less
    informative one.
    """

    def __init__(self, file: BinaryIO):
        self.file, self.size, self.digest = file, 0, hashlib.sha256()
        self.problem = None

    def write(self, data) -> int:
        try:
            self.file.write(data)
        except OSError as error:
            self.problem = error
            raise
        view = memoryview(data).cast("B")
        self.digest.update(view)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        self.file.flush()

    def manifest(self) -> dict[str, object]:
        return {"bytes": self.size, "sha256": self.digest.hexdigest()}


def manifest_path(path: Path) -> Path:
    return path.with_suffix(".json")


def write_manifest(hashed: HashedFile, path: Path) -> None:
    """Write the manifest of the file `path`. Raises UserError."""
    write_json({"file": path.name, **hashed.manifest()}, manifest_path(path))


def write_manifest_of_folder(files: Mapping[str, dict[str, object]], path: Path) -> None:
    """Write the manifest of the folder `path`. files: {file name: manifest}. Raises UserError."""
    write_json({"file": path.name, "files": dict(sorted(files.items()))}, manifest_path(path))


def manifest_of(path: Path) -> dict[str, object]:
    """Return the manifest of an existing file. Raises OSError."""
    with open(path, "rb") as file:
        return manifest_of_content(file)


def manifest_of_content(file: BinaryIO) -> dict[str, object]:
    """Return the manifest of the rest of an open file. Raises the errors of `file.read`."""
    with open(os.devnull, "wb") as null:
        hashed = HashedFile(null)
        shutil.copyfileobj(file, hashed, CHUNK_BYTES)
    return hashed.manifest()


def verify(path: Path) -> None:
    """Raise UserError if a file or folder has a manifest and differs from it."""
    try:
        expected = json.loads(manifest_path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{manifest_path(path)} cannot be read: {error}") from error
    files = expected.get("files", {"": expected}) if isinstance(expected, dict) else None
    if not isinstance(files, dict) or not all(isinstance(each, dict) for each in files.values()):
        raise UserError(f"{manifest_path(path)} cannot be read: it lists no files with their sizes")
    for name, of_file in files.items():
        _verify(path / name, of_file)


def _verify(path: Path, expected: Mapping[str, object]) -> None:
    try:
        found = manifest_of(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if found["bytes"] != expected.get("bytes"):
        raise UserError(
            f"{path} cannot be read: it has {found['bytes']} of {expected.get('bytes')} bytes"
        )
    if found["sha256"] != expected.get("sha256"):
        raise UserError(f"{path} cannot be read: its content differs from what was written")
