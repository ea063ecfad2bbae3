"""The plan of a run and the captions of each shard, on disk.

After a kill, the next call continues with the same plan. The captions of shard NUMBER are appended
to NUMBER.journal, one line per batch, so that no image is captioned twice. A complete shard is
written to NUMBER.jsonl. Sidecars and tars are written from NUMBER.jsonl, and written again after a
kill if necessary. NUMBER.done, the marker, is written after them.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.files.reading import parse_line, read_lines
from captioning.files.writing import json_line, write_lines

HEADER, LOCK = "plan.json", "lock"
BASE = "base.jsonl"  # the captions file as it was when the plan was made

# JSON objects. Settings: they identify a run. Header, Entry: of a plan. Line: the captions of an
# image, or why it has none. Counts: see `Part.counts`.
Settings = Header = Entry = Line = Counts = dict[str, Any]


class ShardUpdate(NamedTuple):
    """Progress that an actor sends while it captions a shard.

    lines: captions since the last update. messages: log lines for the user. counts: the content of
    the shard's marker, only in the last update. problem: the error line that ends the run.
    """

    lines: list[Line]
    messages: list[str]
    counts: Optional[Counts] = None
    problem: Optional[str] = None


def captions_of(line: Line) -> list[str]:
    """Return all captions of a line: "captions" if it has several, else its single "caption"."""
    return line.get("captions", [line["caption"]])


class Plan:
    """Entries in shards of `shard_size` entries. An entry is one image or one tar.

    For stamps, see `stores.stamp`. The header has:

    - file: the name of the file with the entries
    - settings: the settings that identify the run
    - entries: the number of entries
    - images: the number of images; an estimate for tars
    - first_shard: the number of the first output tar
    - before: the stamp of the captions file when the plan was made
    """

    def __init__(self, folder: Path, header: Header):
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
        """Return the number of a shard's output tar."""
        return self.header["first_shard"] + shard

    def parts(self) -> list["Part"]:
        """Return the part of each shard."""
        return [Part(self.folder, shard) for shard in range(len(self._offsets))]

    def entries(self, shard: int) -> list[Entry]:
        """Return the entries of a shard.

        An entry is {"image", "image_id", "prompt"} or {"tar", "stamp", "skip"}. Empty values of
        images are left out. skip: images of the tar that are not captioned again; left out if there
        are none. stamp: the tar's stamp when the plan was made.
        """
        with open(self._path, "rb") as file:
            file.seek(self._offsets[shard])
            lines = (file.readline() for _ in range(self.header["shard_size"]))
            return [json.loads(line) for line in lines if line]


class Part:
    """The files of one shard: journal, captions and marker. Methods raise OSError."""

    def __init__(self, folder: Path, shard: int):
        self.shard = shard
        self.path = folder / f"{shard:06d}.jsonl"
        self.journal, self.marker = (self.path.with_suffix(s) for s in (".journal", ".done"))
        self.lines: list[Line] = []
        self._file = None

    def recover(self) -> "Part":
        """Read the journal of an earlier call, and cut off an incomplete last batch."""
        if not self.journal.exists():
            return self
        complete_bytes = 0
        with open(self.journal, "rb") as file:
            for text in file:
                entry = parse_line(text)
                if entry is None or entry["after"] != len(self.lines):
                    break
                complete_bytes += len(text)
                self.lines += entry["lines"]
        os.truncate(self.journal, complete_bytes)
        return self

    def add(self, lines: list[Line]) -> None:
        """Append the lines of a batch to the journal."""
        if self._file is None:
            self._file = open(self.journal, "ab", buffering=0)  # noqa: SIM115
        self._file.write(json_line({"after": len(self.lines), "lines": lines}))
        self.lines += lines

    def seal(self) -> None:
        """Write the captions of the complete shard, and remove the journal."""
        write_lines(self.path, self.lines)
        if self._file is not None:
            self._file.close()
        self.journal.unlink(missing_ok=True)

    def read(self) -> list[Line]:
        """Return the lines of a sealed part."""
        return [line for line in read_lines(self.path) if line is not None]

    def counts(self) -> Counts:
        """Return the content of the marker.

        `images`, `failed`, `filtered`: the numbers of captioned, failed and filtered images.
        `written`: the manifest of the output tar, by name. `tar`, `stamp`: the input tar, if any.
        """
        return next(read_lines(self.marker))


def find_plan(folder: Path) -> Optional[Plan]:
    """Return the plan in a folder; None if there is none or its header was not written."""
    header = next(read_lines(folder / HEADER), None)
    return None if header is None else Plan(folder, header)


def has_captions(folder: Path) -> bool:
    """Return whether a shard has a file: it has captions, or was given to an actor."""
    return any(path.stem.isdigit() for path in folder.iterdir())


def remove_plan(folder: Path) -> None:
    """Remove a plan and its parts. The header is removed first: without it there is no plan."""
    (folder / HEADER).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink(missing_ok=True)
