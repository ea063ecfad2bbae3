"""Stores the plan of a run and the captions of each shard on disk.

After a crash, the next call continues with the same plan. Shard NUMBER has these files:

- NUMBER.journal: the captions so far, one line per batch, so that no image is captioned twice
- NUMBER.jsonl: the captions of the complete shard. The shard's sidecars and tar are written from
  this file, and written again if a crash interrupts that
- NUMBER.done: the marker, written after the sidecars and the tar
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Optional

from captioning.files.reading import parse_line, read_lines
from captioning.files.writing import json_line, write_lines

HEADER, LOCK = "plan.json", "lock"
BASE = "base.jsonl"  # the captions file as it was when the plan was made

# JSON objects. Settings: the settings that identify a run. Header: see `Plan`. Entry: see
# `Plan.entries`. Line: the captions of one image, or an "error", see `model.line_of`. Counts: see
# `Part.counts`.
Settings = Header = Entry = Line = Counts = dict[str, Any]


class ShardUpdate(NamedTuple):
    """An update that a `CaptioningActor` sends while it captions a shard.

    lines: output lines since the previous update. messages: log lines for the user. counts: the
    content of the shard's marker, only in the last update. problem: an error line that ends the
    run, if any.
    """

    lines: list[Line]
    messages: list[str]
    counts: Optional[Counts] = None
    problem: Optional[str] = None


def captions_of(line: Line) -> list[str]:
    """Return all captions of a line: "captions" if it has several, else its single "caption"."""
    return line.get("captions", [line["caption"]])


class Plan:
    """The entries to caption, divided into shards. An entry is one image or one tar.

    header: has these keys (`stores.stamp` explains stamps):

    - file: the name of the file with the entries
    - settings: the settings that identify the run
    - entries: the number of entries
    - shard_size: the number of entries per shard
    - images: the number of images; for tars an estimate, or None
    - first_shard: the number of the first output tar
    - before: the stamp of the captions file when the plan was made
    """

    def __init__(self, folder: Path, header: Header):
        self.folder, self.header = folder, header
        self._path = folder / header["file"]
        self._offsets: list[int] = []  # the byte at which each shard begins in the file
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
        """Return a `Part` for each shard."""
        return [Part(self.folder, shard) for shard in range(len(self._offsets))]

    def entries(self, shard: int) -> list[Entry]:
        """Return the entries of a shard.

        An entry is {"image", "image_id", "prompt"} or {"tar", "stamp", "prompt", "skip"}. Values
        of images that are None are left out. stamp: the tar's stamp when the plan was made. prompt
        of a tar: the value of --prompt, or None. skip: names of the tar's images that are not
        captioned again; left out if there are none.
        """
        with open(self._path, "rb") as file:
            file.seek(self._offsets[shard])
            lines = (file.readline() for _ in range(self.header["shard_size"]))
            return [json.loads(line) for line in lines if line]


class Part:
    """The files of one shard: journal, captions (`path`) and marker. Methods raise OSError.

    lines: the output lines in the journal, after `recover` or `add`.
    """

    def __init__(self, folder: Path, shard: int):
        self.shard = shard
        self.path = folder / f"{shard:06d}.jsonl"
        self.journal, self.marker = (self.path.with_suffix(s) for s in (".journal", ".done"))
        self.lines: list[Line] = []
        self._file = None

    def recover(self) -> "Part":
        """Read the journal of an earlier call, truncate an incomplete last batch; return self."""
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
        """Append the output lines of a batch to the journal."""
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
        """Return the output lines of a complete shard, after `seal`."""
        return [line for line in read_lines(self.path) if line is not None]

    def counts(self) -> Counts:
        """Return the content of the marker.

        images, failed: the numbers of captioned and failed images. filtered: the number of images
        without a caption that the filter keeps; only with a filter. written: {name of the output
        tar: its manifest}; only if tars are written. tar, stamp: the input tar and its stamp; only
        if the input is tars.
        """
        return next(read_lines(self.marker))


def find_plan(folder: Path) -> Optional[Plan]:
    """Return the plan in a folder; None if the folder has no plan with a header."""
    header = next(read_lines(folder / HEADER), None)
    return None if header is None else Plan(folder, header)


def has_captions(folder: Path) -> bool:
    """Return whether any shard has a file: then it has captions, or an actor has started it."""
    return any(path.stem.isdigit() for path in folder.iterdir())


def remove_plan(folder: Path) -> None:
    """Remove a plan and the files of its shards, the header first.

    Without its header, a plan no longer counts, so that an interrupted removal does no harm.
    """
    (folder / HEADER).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink(missing_ok=True)
