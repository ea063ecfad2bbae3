"""What is to be captioned, in shards, on disk, and the captions of each.

A program that was killed goes on with the very same plan. Of a shard NUMBER.journal grows by a line
a batch, so that nothing is made twice. NUMBER.jsonl appears when all captions are made. Whatever
else comes of them, sidecars or a tar, is written out of that file, and again if need be:
NUMBER.done says that it is there.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.files.reading import parse_line, read_lines
from captioning.files.writing import json_line, write_lines

HEADER, LOCK = "plan.json", "lock"
BASE = "base.jsonl"  # what `out` held before, under a name that keeps it

Line = dict[str, Any]


class Handed(NamedTuple):
    """A shard for an actor of a cluster. number: of its tar. lines: those that are made already.

    seen: a file on disk that it begins with, which the one who hands it out sees.
    """

    shard: int
    number: int
    entries: list[dict[str, Any]]
    lines: list[Line]
    seen: Optional[str]


class Made(NamedTuple):
    """What an actor has made of a shard since it told last. counts: for the marker, at its end.

    said: lines for the user. problem: the one that ends the run.
    """

    lines: list[Line]
    said: list[str]
    counts: Optional[dict[str, Any]] = None
    problem: Optional[str] = None


def captions_of(line: Line) -> list[str]:
    """A line has all captions of an image where there are several, and the best in any case."""
    return line.get("captions", [line["caption"]])


class Plan:
    """Entries, an image or a tar of them each, in shards of `shard_size` entries.

    header: `file`, that of the entries; `settings`, by which a later call tells whether it is the
    same work; `entries`, how many there are, and `images`, of tars about so many; `first_shard`,
    the number of the first tar that is written; `before`, the stamp of the captions' file then.
    """

    def __init__(self, folder: Path, header: dict[str, Any]):
        self.header = header
        self._path = folder / header["file"]
        self._offsets: list[int] = []  # where each shard begins
        with open(self._path, "rb") as file:
            position = 0
            for number, line in enumerate(file):
                if number % header["shard_size"] == 0:
                    self._offsets.append(position)
                position += len(line)

    def number(self, shard: int) -> int:
        """That of the tar which is written of a shard."""
        return self.header["first_shard"] + shard

    def __len__(self) -> int:
        """The number of shards."""
        return len(self._offsets)

    def entries(self, shard: int) -> list[dict[str, Any]]:
        """{"image", "image_id", "old"} or {"tar", "stamp", "skip", "old"}, what is empty left out.

        old: captions that are there, of an image, or in a tar by image. skip: images of a tar that
        have one. stamp: of the tar when the plan was made.
        """
        with open(self._path, "rb") as file:
            file.seek(self._offsets[shard])
            lines = (file.readline() for _ in range(self.header["shard_size"]))
            return [json.loads(line) for line in lines if line]


class Part:
    """The captions of one shard, from the first batch to the marker that is written last.

    Raises OSError where the disk takes no more.
    """

    def __init__(self, folder: Path, shard: int):
        self.shard = shard
        self.path = folder / f"{shard:06d}.jsonl"
        self.journal, self.marker = (self.path.with_suffix(s) for s in (".journal", ".done"))
        self.lines: list[Line] = []
        self._file = None

    def recover(self) -> "Part":
        """Take the batches that an earlier program has made, but for one that it was writing."""
        if not self.journal.exists():
            return self
        whole = 0
        with open(self.journal, "rb") as file:
            for text in file:
                entry = parse_line(text)
                if entry is None or entry["after"] != len(self.lines):
                    break
                whole += len(text)
                self.lines += entry["lines"]
        os.truncate(self.journal, whole)
        return self

    def add(self, lines: list[Line]) -> None:
        """Keep the lines of one more batch."""
        if self._file is None:
            self._file = open(self.journal, "ab", buffering=0)  # noqa: SIM115
        self._file.write(json_line({"after": len(self.lines), "lines": lines}))
        self.lines += lines

    def seal(self) -> None:
        """All lines are there: write the part."""
        write_lines(self.path, self.lines)
        if self._file is not None:
            self._file.close()
        self.journal.unlink(missing_ok=True)

    def read(self) -> list[Line]:
        """The lines of a sealed part."""
        return [line for line in read_lines(self.path) if line is not None]

    def counts(self) -> dict[str, Any]:
        """What the marker holds: how many `images` have captions and `failed`; a tar's name."""
        return next(read_lines(self.marker))


def parts_of(folder: Path, plan: Plan) -> list[Part]:
    return [Part(folder, shard) for shard in range(len(plan))]


def find(folder: Path) -> Optional[Plan]:
    """The plan in a folder, if there is a whole one."""
    header = next(read_lines(folder / HEADER), None)
    return None if header is None else Plan(folder, header)


def begun(folder: Path) -> bool:
    """Whether anything has been captioned of the plan in a folder."""
    return any(path.stem.isdigit() for path in folder.iterdir())


def remove_plan(folder: Path) -> None:
    """Remove a plan and all that belongs to it, the header first: what is left then is no plan."""
    (folder / HEADER).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink(missing_ok=True)
