"""A text file of captions beside each photo."""

import os
from pathlib import Path

from captioning.bulk import jsonl
from captioning.bulk.job import Job
from captioning.bulk.written import captions_of, is_caption


def read_sidecar(path: Path) -> list[str]:
    """The captions in a sidecar, a line each; none where there is none, or an empty one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def write_sidecar(path: Path, captions: list[str]) -> None:
    """Write a sidecar that is whole or not there. Raises OSError.

    It is not synced: a disk would take longer for that than a GPU for the caption. What a kill
    leaves has a fixed name, so the next call takes it away by writing the sidecar again.
    """
    temporary = path.with_name(f".{path.name}.staged")
    temporary.write_text("".join(f"{caption}\n" for caption in captions), encoding="utf-8")
    os.replace(temporary, path)


def write_missing(job: Job, images: set[str]) -> None:
    """Write the sidecars of those images out of the captions that `out` has of them."""
    for line in jsonl.read(job.out):
        if is_caption(line) and line["image"] in images:
            write_sidecar(job.sidecar_of(line["image"]), captions_of(line))
