"""The captions of one shard, from the first batch to the marker that is written last.

NUMBER.journal grows by a line a batch, so that nothing is made twice. NUMBER.jsonl appears when all
captions are made. Whatever else comes of them, sidecars or a tar, is written out of that file, and
again if need be: NUMBER.done says that it is there.
"""

import json
import os
from pathlib import Path
from typing import Any

from captioning.bulk import jsonl
from captioning.files.writing import staged

Line = dict[str, Any]


class Part:
    """Raises OSError where the disk takes no more."""

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
                entry = jsonl.decode(text)
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
        text = jsonl.encode({"after": len(self.lines), "lines": lines})
        self._file.write(text)
        self.lines += lines

    def seal(self) -> None:
        """All lines are there: write the part."""
        with staged(self.path) as file:
            file.writelines(jsonl.encode(line) for line in self.lines)
        if self._file is not None:
            self._file.close()
        self.journal.unlink(missing_ok=True)

    def sealed(self) -> bool:
        return self.path.exists()

    def read(self) -> list[Line]:
        return [line for line in jsonl.read(self.path) if line is not None]

    def mark(self, **counts: Any) -> None:
        """All that belongs to the shard is there. Written last."""
        with staged(self.marker) as file:
            file.write(jsonl.encode(counts))

    def marked(self) -> bool:
        return self.marker.exists()

    def counts(self) -> dict[str, Any]:
        return json.loads(self.marker.read_text(encoding="utf-8"))
