"""A folder of tars that a run writes, on disk or in a store, and whose it is.

Two runs in one folder would take each other's numbers. So it belongs to the captions file of the
run that comes first, until `owner.json` there is removed by hand. That file also has the size and
the SHA-256 of every tar whose captions are in the captions file, by name.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Optional

from captioning.files import stores, uploads
from captioning.files.manifest import PIECE, Hashed
from captioning.files.reading import parse_line
from captioning.files.writing import SUFFIX, held, json_line
from captioning.runtime.errors import UserError

OWNER = "owner.json"


def name_of(number: int) -> str:
    return f"{number:05d}.tar"


class TarFolder:
    """place: on disk or in a store. out: the captions file of the run, as an absolute path or an
    address. Methods raise UserError, and OSError of a disk."""

    def __init__(self, place: str, out: str):
        self.place, self.out = place, out
        self.owner = stores.joined(place, OWNER)
        self.stored = stores.is_store(place)

    def claim(self) -> None:
        """Make it this run's. Raises UserError where it is another's."""
        with self._held():
            if self._read() is None:
                self._write({})
        found = self._read()  # a store may have taken another run's in between
        if found["out"] != self.out:
            raise UserError(
                f"--write-shards: {self.place} has the tars of {found['out']}: name another folder "
                f"for those of {self.out}; remove {self.owner} only if that run is no more"
            )

    def release(self) -> None:
        """Make it nobody's, if no tar of this run is in it."""
        with self._held():
            found = self._read()
            if found is None or found == {"out": self.out, "tars": {}}:
                self._remove(self.owner)

    def record(self, tars: Mapping[str, Any]) -> None:
        """Add what tars of this run will have to be, by name."""
        self._write({**self._read()["tars"], **tars})

    def numbers(self) -> set[int]:
        """Those of the tars that are there, whoever wrote them."""
        return {int(name[: -len(".tar")]) for name in self._names()}

    def write(self, number: int, write: Any) -> dict[str, Any]:
        """Let `write` write a tar into a file; what the tar will have to be, by its name."""
        name = name_of(number)
        with uploads.written(stores.joined(self.place, name)) as file:
            hashed = Hashed(file)
            write(hashed)
        return {name: hashed.manifest()}

    def drop(self, numbers: range) -> None:
        """Remove those tars, and what was begun of others, where the folder is this run's.

        It is nobody's then, if no tar is left.
        """
        found = self._read()
        if found is None or found["out"] != self.out:
            return
        for number in self.numbers().intersection(numbers):
            self._remove(stores.joined(self.place, name_of(number)))
        self.clear()
        if not self.numbers():
            self.release()

    def clear(self) -> None:
        """Remove what a killed program, or an actor that was lost, had begun to write."""
        if not self.stored:
            for name in ("*.tar", OWNER):
                for path in Path(self.place).glob(f".{name}.*{SUFFIX}"):
                    path.unlink(missing_ok=True)

    def verify(self) -> tuple[list[str], list[str]]:
        """The tars of this run that are missing or not as it wrote them, and those of others."""
        there, known = self._names(), self._read()["tars"]
        wrong = [name for name in known if name not in there or self._found(name) != known[name]]
        return sorted(wrong), sorted(there - known.keys())

    def _found(self, name: str) -> dict[str, Any]:
        with stores.opened(stores.joined(self.place, name)) as file, open(os.devnull, "wb") as null:
            hashed = Hashed(null)
            shutil.copyfileobj(file, hashed, PIECE)
        return hashed.manifest()

    def _names(self) -> set[str]:
        if self.stored:
            names = (PurePath(path).name for path in stores.listed(self.place, recursive=False))
        else:
            names = os.listdir(self.place) if os.path.isdir(self.place) else ()
        return {name for name in names if name[-4:] == ".tar" and name[:-4].isdecimal()}

    def _held(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if self.stored else held(Path(self.owner))

    def _read(self) -> Optional[dict[str, Any]]:
        """None where the folder is nobody's."""
        try:
            content = stores.whole(self.owner)
        except (FileNotFoundError, stores.Missing):
            return None
        if not content:  # by `held`, and a kill
            return None
        found = parse_line(content)
        if found is None or found.keys() != {"out", "tars"}:
            raise UserError(f"{self.owner} is damaged: remove it if no other run writes there")
        return found

    def _write(self, tars: Mapping[str, Any]) -> None:
        with uploads.written(self.owner) as file:
            file.write(json_line({"out": self.out, "tars": tars}))

    def _remove(self, name: str) -> None:
        if self.stored:
            uploads.remove(name)
        else:
            Path(name).unlink(missing_ok=True)
