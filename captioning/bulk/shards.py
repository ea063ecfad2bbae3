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
from typing import Any, NamedTuple, Optional, TypedDict, Union

from captioning.files.reading import parse_line, read_lines, read_objects
from captioning.files.stores import Stamp
from captioning.files.writing import json_line, write_lines

HEADER, LOCK = "plan.json", "lock"
BASE = "base.jsonl"  # the captions file as it was when the plan was made

Settings = dict[str, Any]  # {name: value} of the settings that identify a run


class PlanHeader(TypedDict):
    """The header of a plan. `stores.stamp` explains stamps."""

    file: str  # name of the file with the entries
    settings: Settings
    entries: int  # number of entries
    shard_size: int  # entries per shard
    images: Optional[int]  # number of images; for tars an estimate, or None
    first_shard: int  # number of the first output tar
    before: Optional[Stamp]  # stamp of the captions file when the plan was made


class ImageEntry(TypedDict, total=False):
    """One image to caption. Keys without a value are left out."""

    image: str
    image_id: Union[int, str]
    prompt: str
    error: str  # why the image has no caption, see `reading.Batch`


class TarEntry(TypedDict, total=False):
    """One tar whose images are to be captioned."""

    tar: str
    stamp: Optional[Stamp]  # when the plan was made
    prompt: Optional[str]  # the value of --prompt
    skip: list[str]  # images that are not captioned again; left out if there are none


Entry = Union[ImageEntry, TarEntry]


class OutputLine(TypedDict, total=False):
    """The captions of one image, or an error. Written by `model.line_of`.

    The values are those of the best caption. If there are several captions, the lists of all values
    are under the plural keys captions, scores and itms.
    """

    image: str
    image_id: Union[int, str]
    prompt: str
    error: str  # only with the keys above
    caption: str
    score: float
    itm: float  # only with a filter
    checkpoint: str
    settings: Settings


class ShardCounts(TypedDict, total=False):
    """The content of a shard's marker."""

    images: int  # number of captioned images
    failed: int
    filtered: int  # images without a caption that the filter keeps; only with a filter
    written: dict[str, Any]  # {name of the output tar: its manifest}; only if tars are written
    tar: str  # the input tar; only if the input is tars
    stamp: Optional[Stamp]  # of the input tar


class ShardUpdate(NamedTuple):
    """An update that a `CaptioningActor` sends while it captions a shard.

    lines: output lines since the previous update. messages: log lines for the user. counts: the
    content of the shard's marker, only in the last update. problem: an error line that ends the
    run, if any.
    """

    lines: list[OutputLine]
    messages: list[str]
    counts: Optional[ShardCounts] = None
    problem: Optional[str] = None


def captions_of(line: OutputLine) -> list[str]:
    """Return all captions of a line: "captions" if it has several, else its single "caption"."""
    return line.get("captions", [line["caption"]])


class Plan:
    """The entries to caption, divided into shards. An entry is one image or one tar."""

    def __init__(self, folder: Path, header: PlanHeader):
        self.folder, self.header = folder, header
        self._path = folder / header["file"]
        self._offsets = []  # the byte at which each shard begins in the file
        with open(self._path, "rb") as file:
            position = 0
            for number, line in enumerate(file):
                if number % header["shard_size"] == 0:
                    self._offsets.append(position)
                position += len(line)

    def tar_number(self, shard: int) -> int:
        """Return the number of a shard's output tar."""
        return self.header["first_shard"] + shard

    def shards(self) -> list["ShardFiles"]:
        return [ShardFiles(self.folder, number) for number in range(len(self._offsets))]

    def entries(self, shard: int) -> list[Entry]:
        """Return the entries of a shard. shard: its number."""
        with open(self._path, "rb") as file:
            file.seek(self._offsets[shard])
            lines = (file.readline() for _ in range(self.header["shard_size"]))
            return [json.loads(line) for line in lines if line]


class ShardFiles:
    """The files of one shard: journal, captions and marker. Methods raise OSError.

    lines: the output lines in the journal, after `recover` or `add`.
    """

    def __init__(self, folder: Path, number: int):
        self.number = number
        self.captions = folder / f"{number:06d}.jsonl"
        self.journal = self.captions.with_suffix(".journal")
        self.marker = self.captions.with_suffix(".done")
        self.lines = []
        self._file = None

    def recover(self) -> "ShardFiles":
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

    def add(self, lines: list[OutputLine]) -> None:
        """Append the output lines of a batch to the journal."""
        if self._file is None:
            self._file = open(self.journal, "ab", buffering=0)  # noqa: SIM115
        self._file.write(json_line({"after": len(self.lines), "lines": lines}))
        self.lines += lines

    def seal(self) -> None:
        """Write the captions of the complete shard, and remove the journal."""
        write_lines(self.captions, self.lines)
        if self._file is not None:
            self._file.close()
        self.journal.unlink(missing_ok=True)

    def read(self) -> list[OutputLine]:
        """Return the output lines of a complete shard, after `seal`."""
        return list(read_objects(self.captions))

    def counts(self) -> ShardCounts:
        """Return the content of the marker."""
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
