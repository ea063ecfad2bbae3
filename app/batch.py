"""Captions of several photos as one ZIP."""

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from app.checkpoints import Checkpoint
from app.desk import Caption, Desk, json_lines
from app.limits import Limits
from app.options import Options
from app.photos import read_photo
from captioning.runtime.errors import UserError


class Captioned(NamedTuple):
    """One photo of a batch: its captions, or the line that says why there are none."""

    name: str
    captions: list[Caption]
    reason: str = ""


def caption_all(
    desk: Desk,
    photos: Sequence[tuple[Path, str]],
    checkpoints: Sequence[Checkpoint],
    options: Options,
    limits: Limits,
) -> Iterator[Captioned]:
    """Yield every photo (file, name) as it is done; one that cannot be read does not end it.

    Raises UserError for too many photos and for settings that a checkpoint cannot follow.
    """
    if len(photos) > limits.photos:
        raise UserError(f"{len(photos)} photos; this page takes up to {limits.photos} at a time")
    for path, name in photos:
        try:
            photo = read_photo(path, name, limits)
        except UserError as error:
            yield Captioned(name, [], str(error))
            continue
        yield Captioned(name, [desk.caption(photo, c, options) for c in checkpoints])


def write_zip(done: Sequence[Captioned], path: Path) -> None:
    """captions.jsonl, failed.jsonl where there is one to name, and LABEL/PHOTO.txt."""
    records = [{"image": d.name, **caption.record()} for d in done for caption in d.captions]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("captions.jsonl", json_lines(records))
        failed = [{"image": d.name, "reason": d.reason} for d in done if d.reason]
        if failed:
            archive.writestr("failed.jsonl", json_lines(failed))
        taken: set[str] = set()
        for photo in done:
            stem = _free(Path(photo.name).stem, taken)
            for caption in photo.captions:
                folder = "".join(
                    c if c.isalnum() or c in "+-. " else "_" for c in caption.checkpoint.label
                )
                archive.writestr(f"{folder}/{stem}.txt", caption.told.caption + "\n")


def _free(stem: str, taken: set[str]) -> str:
    """The stem, with a number where another photo of the batch has it already."""
    name, number = stem, 2
    while name.lower() in taken:
        name, number = f"{stem}_{number}", number + 1
    taken.add(name.lower())
    return name
