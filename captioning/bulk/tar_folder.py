"""Manages the output folder of tars, on disk or in a store, and its owner.

Two runs in one folder would give their tars the same numbers. Therefore the captions file of the
first run owns the folder until a user removes owner.json. This file has two keys:

- out: the path or address of the captions file
- tars: {name: manifest, with the size and the SHA-256} of each tar whose captions are already in
  the captions file
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Callable, Optional

from captioning.files import stores, uploads
from captioning.files.manifest import HashedFile, manifest_of_content
from captioning.files.reading import parse_line
from captioning.files.writing import SUFFIX, json_line, locked
from captioning.runtime.errors import UserError

OWNER = "owner.json"


def name_of(number: int) -> str:
    return f"{number:05d}.tar"


class TarFolder:
    """A folder of tars. The methods raise UserError, and for a folder on disk also OSError.

    place: path or address of the folder. out: absolute path or address of the run's captions file.
    """

    def __init__(self, place: str, out: str):
        self.place, self.out = place, out
        self.owner = stores.join(place, OWNER)
        self.stored = stores.is_store(place)

    def claim(self) -> None:
        """Become the owner of the folder. Raises UserError if another run owns the folder."""
        with self._lock():
            if self._read() is None:
                self._write({})
        # Read again, because in a store, which has no lock, another run may have written meanwhile.
        found = self._read()
        if found["out"] != self.out:
            raise UserError(
                f"--write-shards: {self.place} has the tars of {found['out']}: choose another "
                f"folder for {self.out}; remove {self.owner} only if that run is obsolete"
            )

    def release(self) -> None:
        """Give up the ownership, unless owner.json records tars of this run."""
        with self._lock():
            found = self._read()
            if found is None or found == {"out": self.out, "tars": {}}:
                uploads.remove(self.owner)

    def record(self, tars: Iterable[Mapping[str, Any]]) -> None:
        """Add finished tars of this run to owner.json. tars: {name: manifest} for each."""
        known = self._read()["tars"]
        for tar in tars:
            known.update(tar)
        self._write(known)

    def numbers(self) -> set[int]:
        """Return the numbers of all tars in the folder, including tars of other runs."""
        return {int(name[: -len(".tar")]) for name in self._names()}

    def write(self, number: int, write: Callable[[BinaryIO], None]) -> dict[str, Any]:
        """Write a tar atomically; return {name: manifest}. write: called with the open file."""
        self.claim()  # again, because in a store another run may have claimed the folder meanwhile
        name = name_of(number)
        with uploads.open_to_write(stores.join(self.place, name)) as file:
            hashed = HashedFile(file)
            write(hashed)
        return {name: hashed.manifest()}

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove the tars with these numbers, if this run is the owner.

        If the folder then has no tars, gives up the ownership.
        """
        found = self._read()
        if found is None or found["out"] != self.out:
            return
        for number in self.numbers().intersection(numbers):
            uploads.remove(stores.join(self.place, name_of(number)))
        self.remove_partial()
        if not self.numbers():
            self.release()

    def remove_partial(self) -> None:
        """Remove temporary files that a killed program or a lost actor has left."""
        if not self.stored:
            for name in ("*.tar", OWNER):
                for path in Path(self.place).glob(f".{name}.*{SUFFIX}"):
                    path.unlink(missing_ok=True)

    def verify(self) -> tuple[list[str], list[str]]:
        """Return the names of this run's missing or changed tars, and of all other tars."""
        names, known = self._names(), self._read()["tars"]
        wrong = [name for name in known if name not in names]
        for name in known.keys() & names:
            with stores.open_file(stores.join(self.place, name)) as file:
                if manifest_of_content(file) != known[name]:
                    wrong.append(name)
        return sorted(wrong), sorted(names - known.keys())

    def _names(self) -> set[str]:
        if self.stored:
            names = (PurePath(path).name for path in stores.list_files(self.place, recursive=False))
        else:
            names = os.listdir(self.place) if os.path.isdir(self.place) else ()
        return {name for name in names if name[-4:] == ".tar" and name[:-4].isdecimal()}

    def _lock(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if self.stored else locked(Path(self.owner))

    def _read(self) -> Optional[dict[str, Any]]:
        """Return the content of owner.json; None if the folder has no owner."""
        content = stores.read_if_any(self.owner)
        if not content:  # `locked` creates an empty file, which stays if the program is killed
            return None
        found = parse_line(content)
        if found is None or found.keys() != {"out", "tars"}:
            raise UserError(f"{self.owner} is damaged: remove it if no other run writes there")
        return found

    def _write(self, tars: Mapping[str, Any]) -> None:
        with uploads.open_to_write(self.owner) as file:
            file.write(json_line({"out": self.out, "tars": tars}))
