"""What an earlier call has written: which images have a caption, and which have failed."""

from dataclasses import dataclass, field
from typing import Any

from captioning.bulk import jsonl
from captioning.bulk.job import Job
from captioning.files.writing import staged

# Images by name, each with its captions, or with none where nobody asks for them.
Captions = dict[str, list[str]]


def captions_of(line: dict[str, Any]) -> list[str]:
    return line.get("captions", [line["caption"]])


@dataclass
class Written:
    """The lines of `out`, and those of `failed` that are of `out`, by image.

    damaged, repeated: lines that are no caption of an image, or of one that has been named before.
    """

    captions: Captions = field(default_factory=dict)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoints: set[str] = field(default_factory=set)
    damaged: int = 0
    repeated: int = 0


def read_written(job: Job) -> Written:
    """Read both files; there may be none."""
    found = Written()
    for line in jsonl.read(job.out):
        if not is_caption(line):
            found.damaged += 1
        elif line["image"] in found.captions:
            found.repeated += 1
        else:
            found.captions[line["image"]] = [] if job.keeps() else captions_of(line)
            found.checkpoints.add(str(line.get("checkpoint")))
    for line in jsonl.read(job.failed):
        if line and line.get("out") == job.out.name:
            found.failed[line["image"]] = line
    return found


def write_without_faults(job: Job) -> None:
    """Write `out` anew with the first whole line of each image."""
    seen: set[str] = set()
    with staged(job.out) as file:
        for line in jsonl.read(job.out):
            if is_caption(line) and line["image"] not in seen:
                seen.add(line["image"])
                file.write(jsonl.encode(line))


def is_caption(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and isinstance(line.get("image"), str)
        and isinstance(line.get("caption"), str)
    )
