"""What is to be captioned, on disk: a program that was killed goes on with the very same."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from captioning.bulk import jsonl
from captioning.durable import staged

ENTRIES, HEADER, LOCK = "plan.jsonl", "plan.json", "lock"


class Plan:
    """Entries, an image or a tar of them each, in shards of `shard_size` entries.

    header: `settings`, by which a later call tells whether it is the same work; `entries`, how many
    there are, and `images`, of tars about so many; `first_shard`, the number of the first tar that
    is written.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.header: dict[str, Any] = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        self._offsets: list[int] = []  # where each shard begins
        with open(folder / ENTRIES, "rb") as file:
            position = 0
            for number, line in enumerate(file):
                if number % self.header["shard_size"] == 0:
                    self._offsets.append(position)
                position += len(line)

    def __len__(self) -> int:
        """The number of shards."""
        return len(self._offsets)

    def entries(self, shard: int) -> list[dict[str, Any]]:
        """{"image", "image_id", "old"} or {"tar", "skip", "old"}, what is empty left out.

        old: captions that are there, of an image, or in a tar by image. skip: images of a tar that
        have one.
        """
        with open(self.folder / ENTRIES, "rb") as file:
            file.seek(self._offsets[shard])
            lines = (file.readline() for _ in range(self.header["shard_size"]))
            return [json.loads(line) for line in lines if line]


def find(folder: Path) -> Optional[Plan]:
    """The plan in a folder, if there is a whole one."""
    return Plan(folder) if (folder / HEADER).exists() else None


def begun(folder: Path) -> bool:
    """Whether anything has been captioned of the plan in a folder."""
    return any(path.stem.isdigit() for path in folder.iterdir())


def write_entries(folder: Path, entries: Iterable[dict[str, Any]]) -> int:
    """Write the entries, which are a plan when `write_header` has been called; how many."""
    count = 0
    with staged(folder / ENTRIES) as file:
        for entry in entries:
            file.write(jsonl.encode(entry))
            count += 1
    return count


def write_header(folder: Path, **header: Any) -> None:
    with staged(folder / HEADER) as file:
        file.write(jsonl.encode(header))


def remove_plan(folder: Path) -> None:
    """Remove a plan and all that belongs to it, the header first: what is left then is no plan."""
    (folder / HEADER).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()
