"""Divides a run into units of images, and keeps the captions of finished batches.

An unfinished run has the folder OUT.parts, on a disk or in a store:

- plan.json: the settings of the run, the stamps of its tars, what planning has counted, and where
  each unit begins in units.jsonl. Written after, and removed before, all other files: without it
  there is no unfinished run
- ID/units.jsonl: a unit per line, {"images": entries} or {"tar": url, ...}
- ID/UNIT.FIRST.END.jsonl: the lines FIRST to END of a unit; UNIT.FIRST.END.last.jsonl: its last
- ID/UNIT.FIRST.TOKEN.try: a process has begun the unit when FIRST of its lines were kept

Each file appears when it is complete, and does not change. The lines of a unit depend only on the
unit, so that two processes that caption one unit write the same lines. Their files may overlap.
"""

import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from captioning.files import stores
from captioning.files.writing import json_line
from captioning.runtime.errors import UserError

HEADER, UNITS, VERSION = "plan.json", "units.jsonl", 3
TRIES = 3  # a unit that has ended its process so often without a new line is set aside

Unit = dict[str, Any]
Line = dict[str, Any]  # image, caption, and captions if it has several; or image and error


def captions_of(line: Line) -> list[str]:
    """Return all captions of a line without an error."""
    return line.get("captions", [line["caption"]])


class Part(NamedTuple):
    """A file of a unit's lines, from the line `first` to before the line `end`."""

    first: int
    end: int
    is_last: bool


class Plan:
    """The plan in a folder. Raises UserError if the folder has none, or one of another version."""

    def __init__(self, folder: str):
        address = stores.join(folder, HEADER)
        self.header = json.loads(stores.read_bytes(address))
        if self.header.get("version") != VERSION:
            raise UserError(
                f"{address} is of another version of this program: finish the run with that "
                "version, or abandon it with --restart"
            )
        self.folder, self._offsets = stores.join(folder, self.header["id"]), self.header["offsets"]
        self._parts, self._tries = defaultdict(set), Counter()
        for name in stores.names_in(self.folder):
            unit, *numbers, kind = name.split(".")
            if kind == "try":
                self._tries[int(unit), int(numbers[0])] += 1
            elif unit.isdigit():
                part = Part(int(numbers[0]), int(numbers[1]), "last" in numbers)
                self._parts[int(unit)].add(part)
        self.has_lines = bool(self._parts)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def unit(self, number: int) -> Unit:
        first, end = self._offsets[number : number + 2]
        address = stores.join(self.folder, UNITS)
        return json.loads(stores.read_range(address, first, end - first))

    def parts(self, unit: int) -> list[Part]:
        """Return files that together have the unit's kept lines, without a gap."""
        chosen, end = [], 0
        for part in sorted(self._parts.get(unit, ()), key=lambda part: (part.first, -part.end)):
            if part.first <= end < part.end or (part.first <= end == part.end and part.is_last):
                chosen.append(part)
                end = part.end
        return chosen

    def kept(self, unit: int) -> int:
        """Return the number of lines of a unit that are kept."""
        return max((part.end for part in self.parts(unit)), default=0)

    def left(self) -> list[int]:
        """Return the units that are not done."""
        units = range(len(self))
        return [unit for unit in units if not any(part.is_last for part in self.parts(unit))]

    def lines(self, unit: int) -> Iterator[Line]:
        """Yield the kept lines of a unit, in order."""
        number = 0
        for part in self.parts(unit):
            content = stores.read_bytes(self._address(unit, part))
            yield from map(json.loads, content.splitlines()[number - part.first :])
            number = part.end

    def all_lines(self) -> Iterator[Line]:
        """Yield the kept lines of all units, in order."""
        return chain.from_iterable(map(self.lines, range(len(self))))

    def keep(self, unit: int, first: int, lines: list[Line], is_last: bool) -> None:
        """Keep further lines of a unit, from the line `first`."""
        part = Part(first, first + len(lines), is_last)
        stores.put(b"".join(map(json_line, lines)), self._address(unit, part))
        self._parts[unit].add(part)

    def _address(self, unit: int, part: Part) -> str:
        name = f"{unit:07d}.{part.first}.{part.end}{'.last' * part.is_last}.jsonl"
        return stores.join(self.folder, name)

    def tries(self, unit: int) -> int:
        """Return how many processes have ended during the unit since its last kept line."""
        return self._tries[unit, self.kept(unit)]

    def begin(self, unit: int) -> str:
        """Write a file that says that a process has begun the unit; return its address.

        The process removes the file unless it is killed.
        """
        name = f"{unit:07d}.{self.kept(unit)}.{secrets.token_hex(4)}.try"
        address = stores.join(self.folder, name)
        stores.put(b"", address)
        return address


def exists(folder: str) -> bool:
    return stores.exists(stores.join(folder, HEADER))


def remove(folder: str) -> None:
    """Remove a plan, the header first, and what killed programs have left of others.

    Raises OSError, UserError.
    """
    stores.remove(stores.join(folder, HEADER))
    stores.remove_folder(folder)


def make(folder: str, header: dict[str, Any], units: Iterable[Unit]) -> None:
    """Write a plan. Raises UserError.

    header: further entries, such as "settings". It is written when all units are there, so that
    its entries may be what is counted while they are made.
    """
    remove(folder)
    identity, offsets = secrets.token_hex(4), [0]
    try:
        with stores.create(stores.join(stores.join(folder, identity), UNITS)) as file:
            for unit in units:
                offsets.append(offsets[-1] + file.write(json_line(unit)))
    except BaseException:
        remove(folder)
        raise
    header = {**header, "version": VERSION, "id": identity, "offsets": offsets}
    stores.put(json_line(header), stores.join(folder, HEADER))
