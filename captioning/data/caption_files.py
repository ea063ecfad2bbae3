"""Reads predictions and references from files of all formats, and matches them by image id."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional

from captioning.data.annotations import ImageId, derived_id, read_samples
from captioning.files import rows
from captioning.files.cache import local
from captioning.files.reading import StrPath
from captioning.files.tables import is_row
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

Captions = dict[ImageId, str]  # one predicted caption per image
References = dict[ImageId, list[str]]  # the human captions of each image


def read_predictions(path: StrPath, ids: Mapping[str, ImageId] = MappingProxyType({})) -> Captions:
    """Read a file of predictions as {image id: caption}; see `captioning.files.rows`.

    Of several `captions` in a row, the first is the best, as in the lines of bulk captioning.

    ids: {image file name: image id}, see `ids_by_name`. The image id of a row is the first of
    these that exists: `image_id`; the id in `ids` of the name that the path `image` ends in; `id`;
    `derived_id` of `image`.

    Raises UserError for a file that is missing, empty or of another format, and for an image with
    two different captions. Two equal captions are accepted, because the shards of several processes
    may repeat an image.
    """
    captions, cut = {}, 0  # {image id as text: (image id, caption)}
    for row in rows.read(local(path), needs=["captions"]):
        cut += row.get("cut") is True
        image_id, image = row.get("image_id"), row.get("image")
        if image is not None and image_id in (None, row.get("id")):
            name = named_in(image, ids)
            image_id = ids.get(name, derived_id(image) if image_id is None else image_id)
        if image_id is None:
            raise UserError(f"{row.where} has no image_id (an integer or a string)")
        if isinstance(row.get("caption"), list) and len(row["captions"]) > 1:
            raise UserError(
                f"{row.where} (image_id {image_id!r}) has several captions, as references have: "
                "give one prediction per image"
            )
        caption = next(iter(row["captions"]), "")
        if captions.setdefault(str(image_id), (image_id, caption))[1] != caption:
            raise UserError(
                f"{row.where}: image_id {image_id!r} occurs twice, with two captions: keep one of "
                "them"
            )
    if not captions:
        raise UserError(f"{path}: no predictions: nothing to score")
    if cut:
        log_line(f"{path}: {cut} of {len(captions)} captions were cut at max_length")
    return dict(captions.values())


def read_references(path: StrPath) -> References:
    """Read a file of references as {image id: human captions}; see `captioning.files.rows`.

    Also reads capevalkit's lines {id, references}. Blank captions, and images without other
    captions, are left out. Raises UserError, also for a file without captions.
    """
    path = local(path)
    references = {s.image_id: list(s.captions) for s in read_samples(path) if s.captions}
    if not references:
        raise UserError(f"{path}: no reference captions: check that this is the right file")
    return references


def ids_by_name(references: Path) -> dict[str, ImageId]:
    """Return {image file name: image id} of a file of references.

    If the file names no images, a textual image id may be a name. An image in a Parquet or Arrow
    file is named FILE/ROW without the folders of FILE, unless two images would then have the same
    name.
    """
    names = {
        sample.image: sample.image_id
        for sample in read_samples(references)
        if isinstance(sample.image, str)
    }
    short = ["/".join(name.split("/")[-2:]) for name in names if is_row(name)]
    if len(set(short)) == len(names):
        return dict(zip(short, names.values()))
    return names


def named_in(path: str, names: Collection[str]) -> Optional[str]:
    """Return the longest of the `names` that an image's path ends in, or None."""
    parts = path.split("/")
    tails = ("/".join(parts[first:]) for first in range(len(parts)))
    return next((tail for tail in tails if tail in names), None)


def with_references(
    captions: Captions, references: Mapping[ImageId, Sequence[str]]
) -> tuple[Captions, list[ImageId]]:
    """Return the captions that have references, and the ids of the captions without references.

    Raises UserError if no caption has references.
    """
    matched = of_images(captions, references)
    kept = {image_id: caption for image_id, caption in captions.items() if matched[image_id]}
    if captions and not kept:
        raise UserError(
            "predictions and references have no image id in common: the first ones are "
            f"{next(iter(captions))!r} and {next(iter(references), None)!r}"
        )
    return kept, [image_id for image_id in captions if image_id not in kept]


def of_images(ids: Iterable[ImageId], known: Mapping[ImageId, Any]) -> dict[ImageId, Any]:
    """Return {id: its entry in `known`}, such as its references; () for an unknown id.

    The ids "139" and 139 name the same image, unless both are in `known`. An unknown caption id
    such as "a.jpg#0" gets the entry of the image "a.jpg": Flickr8k's files number the captions of
    an image in this way.
    """
    as_text = {str(image_id): entry for image_id, entry in known.items()}

    def entry(image_id: ImageId) -> Any:
        of_image = as_text.get(str(image_of(image_id)), ())
        return known.get(image_id, as_text.get(str(image_id), of_image))

    return {image_id: entry(image_id) for image_id in ids}


def entries_of(
    ids: Iterable[ImageId], known: Mapping[ImageId, Any], file: str
) -> dict[ImageId, Any]:
    """Return {image id: its entry in `known`}. Ids are matched as in `of_images`.

    known: the content of a file, {image id: entry}. file: its name, for errors. Raises UserError
    for an image without an entry.
    """
    entries = of_images(ids, known)
    for image_id, entry in entries.items():
        if not entry:
            raise UserError(
                f"{file} has no entry for image {image_of(image_id)!r}: add one, or leave the "
                "image out"
            )
    return entries


def image_of(caption_id: ImageId) -> ImageId:
    """Return the image id of a caption id: "a.jpg" for "a.jpg#0". Other ids stay unchanged."""
    return re.sub(r"#\d+\Z", "", caption_id) if isinstance(caption_id, str) else caption_id
