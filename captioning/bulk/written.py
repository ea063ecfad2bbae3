"""What an earlier call has written: which images have a caption, a sidecar, and which failed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioning.bulk import jsonl
from captioning.bulk.request import Request
from captioning.files.writing import replace_text, staged

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


def read_written(request: Request) -> Written:
    """Read both files; there may be none."""
    found = Written()
    for line in jsonl.read(request.out):
        if not is_caption(line):
            found.damaged += 1
        elif line["image"] in found.captions:
            found.repeated += 1
        else:
            found.captions[line["image"]] = [] if request.keeps() else captions_of(line)
            found.checkpoints.add(str(line.get("checkpoint")))
    for line in jsonl.read(request.failed):
        if line and line.get("out") == request.out.name:
            found.failed[line["image"]] = line
    return found


def write_without_faults(request: Request) -> None:
    """Write `out` anew with the first whole line of each image."""
    seen: set[str] = set()
    with staged(request.out) as file:
        for line in jsonl.read(request.out):
            if is_caption(line) and line["image"] not in seen:
                seen.add(line["image"])
                file.write(jsonl.encode(line))


def is_caption(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and isinstance(line.get("image"), str)
        and isinstance(line.get("caption"), str)
    )


def read_sidecar(path: Path) -> list[str]:
    """The captions in a sidecar, a line each; none where there is none, or an empty one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def write_sidecar(path: Path, captions: list[str]) -> None:
    """Write a sidecar that is whole or not there. Raises OSError.

    It is not synced: a disk would take longer for that than a GPU for the caption.
    """
    replace_text("".join(f"{caption}\n" for caption in captions), path)


def write_missing(request: Request, images: set[str]) -> None:
    """Write the sidecars of those images out of the captions that `out` has of them."""
    for line in jsonl.read(request.out):
        if is_caption(line) and line["image"] in images:
            write_sidecar(request.sidecar_of(line["image"]), captions_of(line))
