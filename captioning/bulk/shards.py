"""The plan of a run and the captions of each shard, on disk.

A program that was killed continues with the same plan. The captions of shard NUMBER go to
NUMBER.journal, one line per batch, so that no image is captioned twice. NUMBER.jsonl appears when
the shard is complete. Sidecars and tars are written from that file, again after a kill if
necessary. NUMBER.done marks that they are written.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.files.reading import parse_line, read_lines
from captioning.files.writing import json_line, write_lines

HEADER, LOCK = "plan.json", "lock"
BASE = "base.jsonl"  # the captions file as it was when the plan was made

Line = dict[str, Any]


class ShardTask(NamedTuple):
    """A shard that an actor has to caption. number: of the tar that it writes, if any.

    lines: captions that exist already. local_file: a file that the driver has on its disk, and that
    the actor's machine needs as well; None where there is nothing to check.
    """

    shard: int
    number: int
    entries: list[dict[str, Any]]
    lines: list[Line]
    local_file: Optional[str]


class ShardUpdate(NamedTuple):
    """What an actor sends while it captions a shard: the lines since its last update.

    messages: for the user. counts: the content of the shard's marker, in the last update only.
    problem: the error line that ends the run.
    """

    lines: list[Line]
    messages: list[str]
    counts: Optional[dict[str, Any]] = None
    problem: Optional[str] = None


def captions_of(line: Line) -> list[str]:
    """All captions of a line: "captions" where there are several, else the single "caption"."""
    return line.get("captions", [line["caption"]])


class Plan:
    """Entries, one image or tar each, in shards of `shard_size` entries.

    header: `file`, the name of the file of entries; `settings`, which identify the run; `entries`,
    their number; `images`, their number, an estimate for tars; `first_shard`, the number of the
    first tar that is written; `before`, the stamp of the captions file when the plan was made.
    """

    def __init__(self, folder: Path, header: dict[str, Any]):
        self.folder, self.header = folder, header
        self._path = folder / header["file"]
        self._offsets: list[int] = []  # in bytes, where each shard begins
        with open(self._path, "rb") as file:
            position = 0
            for number, line in enumerate(file):
                if number % header["shard_size"] == 0:
                    self._offsets.append(position)
                position += len(line)

    def number(self, shard: int) -> int:
        """The number of the tar that is written for a shard."""
        return self.header["first_shard"] + shard

    def parts(self) -> list["Part"]:
        """The part of each shard."""
        return [Part(self.folder, shard) for shard in range(len(self._offsets))]

    def entries(self, shard: int) -> list[dict[str, Any]]:
        """{"image", "image_id"} or {"tar", "stamp", "skip"}; empty values are left out.

        skip: images of the tar that have a caption. stamp: of the tar when the plan was made.
        """
        with open(self._path, "rb") as file:
            file.seek(self._offsets[shard])
            lines = (file.readline() for _ in range(self.header["shard_size"]))
            return [json.loads(line) for line in lines if line]


class Part:
    """The captions of one shard, from the first batch to the marker. Raises OSError."""

    def __init__(self, folder: Path, shard: int):
        self.shard = shard
        self.path = folder / f"{shard:06d}.jsonl"
        self.journal, self.marker = (self.path.with_suffix(s) for s in (".journal", ".done"))
        self.lines: list[Line] = []
        self._file = None

    def recover(self) -> "Part":
        """Read the batches of an earlier program, and cut off the one that is incomplete."""
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
        """Append the lines of a batch to the journal."""
        if self._file is None:
            self._file = open(self.journal, "ab", buffering=0)  # noqa: SIM115
        self._file.write(json_line({"after": len(self.lines), "lines": lines}))
        self.lines += lines

    def seal(self) -> None:
        """Write the complete part, and remove the journal."""
        write_lines(self.path, self.lines)
        if self._file is not None:
            self._file.close()
        self.journal.unlink(missing_ok=True)

    def read(self) -> list[Line]:
        """The lines of a sealed part."""
        return [line for line in read_lines(self.path) if line is not None]

    def counts(self) -> dict[str, Any]:
        """The content of the marker: the numbers of `images` with captions and `failed` ones, and
        the name and stamp of a tar."""
        return next(read_lines(self.marker))


def find_plan(folder: Path) -> Optional[Plan]:
    """The plan in a folder, None where there is none or its header was not written."""
    header = next(read_lines(folder / HEADER), None)
    return None if header is None else Plan(folder, header)


def has_captions(folder: Path) -> bool:
    """Whether any image of the plan in a folder has been captioned, or given to an actor."""
    return any(path.stem.isdigit() for path in folder.iterdir())


def remove_plan(folder: Path) -> None:
    """Remove a plan and its parts. The header goes first: without it nothing else is a plan."""
    (folder / HEADER).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink(missing_ok=True)
