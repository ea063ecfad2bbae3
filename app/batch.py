"""Captions of several photos as one ZIP."""

import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from app.checkpoints import Checkpoint
from app.options import Options
from app.photos import read_photo
from app.service import Caption, CaptionService
from captioning.files.writing import json_line
from captioning.runtime.errors import UserError


class Captioned(NamedTuple):
    """One photo of a batch: its captions, or the line that says why there are none."""

    name: str
    captions: list[Caption]
    reason: str = ""


def caption_all(
    service: CaptionService,
    photos: Sequence[tuple[Path, str]],
    checkpoints: Sequence[Checkpoint],
    options: Options,
) -> Iterator[Captioned]:
    """Yield every photo (file, name) as it is done; one that cannot be read does not end it.

    Raises UserError for too many photos and for settings that a checkpoint cannot follow.
    """
    most = service.limits.photos
    if len(photos) > most:
        raise UserError(f"{len(photos)} photos; this page takes up to {most} at a time")
    for path, name in photos:
        try:
            photo = read_photo(path, name, service.limits)
        except UserError as error:
            yield Captioned(name, [], str(error))
            continue
        yield Captioned(name, [service.caption(photo, c, options) for c in checkpoints])


def write_zip(done: Sequence[Captioned], path: Path) -> None:
    """captions.jsonl, failed.jsonl where there is one to name, and LABEL/PHOTO.txt."""
    records = [{"image": d.name, **caption.record()} for d in done for caption in d.captions]
    failed = [{"image": d.name, "reason": d.reason} for d in done if d.reason]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("captions.jsonl", b"".join(map(json_line, records)))
        if failed:
            archive.writestr("failed.jsonl", b"".join(map(json_line, failed)))
        names: set[str] = set()
        for photo in done:
            name = _unused(Path(photo.name).stem, names)
            for caption in photo.captions:
                folder = re.sub(r"[^\w+. -]", "_", caption.checkpoint.label)
                archive.writestr(f"{folder}/{name}.txt", caption.details.caption + "\n")


def _unused(stem: str, names: set[str]) -> str:
    """The stem, numbered where another photo of the batch has it, and added to the names."""
    name, number = stem, 2
    while name.lower() in names:
        name, number = f"{stem}_{number}", number + 1
    names.add(name.lower())
    return name
