"""Reads predictions and references from the usual file formats, and matches them by image id."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from captioning.data.annotations import ImageId, derived_id, read_annotations
from captioning.data.formats import is_json
from captioning.files.cache import local
from captioning.files.reading import StrPath, parse_json_lines, read_json, read_text
from captioning.files.tables import is_row
from captioning.runtime.errors import UserError

Captions = dict[ImageId, str]  # one predicted caption per image
References = dict[ImageId, list[str]]  # the human captions of each image
NO_IDS = {}


def read_predictions(path: StrPath, ids: Mapping[str, ImageId] = NO_IDS) -> Captions:
    """Read a file of predictions as {image id: caption}.

    The file is in COCO's results format, a list of {image_id, caption}, or is a .jsonl file with
    the lines {image, caption} of bulk captioning or {id, caption} of capevalkit.

    ids: {image file name: image id}, see `ids_by_name`. The image id of an entry is the first of
    these that exists: `image_id`; the id in `ids` of the name that the path `image` ends in; `id`;
    `derived_id` of `image`.

    Raises UserError for a file that is missing, empty or of another format, and for an image with
    two different captions. Two equal captions are accepted, because the shards of several processes
    may repeat an image.
    """
    file = local(path)
    if file.suffix == ".jsonl":
        entries = [entry for _, entry in parse_json_lines(read_text(file).split("\n"), file)]
    else:
        entries = read_json(file)
    return predictions_by_id(entries, str(path), ids)


def predictions_by_id(
    entries: Any, where: str = "predictions", ids: Mapping[str, ImageId] = NO_IDS
) -> Captions:
    """Return {image id: caption} of a list of {image_id, caption}. ids: see `read_predictions`.

    where: the name of the file, for errors. Raises UserError.
    """
    if not isinstance(entries, list):
        raise UserError(f"{where}: expected a list of {{image_id, caption}}, as COCO results are")
    if not entries:
        raise UserError(f"{where}: the list of predictions is empty: nothing to score")
    captions = {}
    for image_id, caption in _pairs(entries, where, ids):
        if captions.setdefault(image_id, caption) != caption:
            raise UserError(
                f"{where}: image_id {image_id!r} occurs twice, with two captions: keep one of them"
            )
    return captions


def read_references(path: StrPath) -> References:
    """Read a file of references as {image id: human captions}, at least one for each image.

    The file has COCO's format ({annotations: [{image_id, caption}]}), a format of
    `read_annotations`, {image id: [captions]}, or capevalkit's lines {id, references}. Blank
    captions are left out. Raises UserError for a file that is missing, empty or of another format,
    and for an image without captions.
    """
    path = local(path)
    document = _other_than_annotations(path)
    if document is None:
        return {sample.image_id: list(sample.captions) for sample in read_annotations(path)}
    references = {}
    if isinstance(document.get("annotations"), list):
        for image_id, caption in _pairs(document["annotations"], f"{path}: annotations"):
            references.setdefault(image_id, []).append(caption)
    else:
        references = document
    for image_id, captions in references.items():
        is_list = isinstance(captions, list) and all(isinstance(text, str) for text in captions)
        references[image_id] = [text for text in captions if text.strip()] if is_list else []
        if not references[image_id]:
            raise UserError(
                f"{path}: no reference captions under {image_id!r}: expected COCO's "
                "{annotations: [{image_id, caption}]} or {image id: [captions]}"
            )
    if not references:
        raise UserError(f"{path}: no reference captions: check that this is the right file")
    return references


def ids_by_name(references: Path) -> dict[str, ImageId]:
    """Return {image file name: image id} of a file of references.

    An image in a Parquet or Arrow file is named FILE/ROW without the folders of FILE, unless two
    images would then have the same name.
    """
    document = _other_than_annotations(references)
    if document is None:
        names = {sample.image: sample.image_id for sample in read_annotations(references)}
        short = ["/".join(name.split("/")[-2:]) for name in names if is_row(name)]
        if len(set(short)) == len(names):
            return dict(zip(short, names.values()))
        return names
    if "annotations" not in document:  # {image id: [captions]}: an id may be a file name
        return {name: name for name in document}
    images = document.get("images")
    rows = [row for row in images if isinstance(row, dict)] if isinstance(images, list) else []
    return {
        row["file_name"]: row.get("id") for row in rows if isinstance(row.get("file_name"), str)
    }


def _other_than_annotations(path: Path) -> Optional[dict]:
    """Return the JSON object in a file of references, such as {image id: [captions]} or COCO's.

    For capevalkit's lines, the object is {id: references}. Returns None for lists, for Karpathy's
    format and for files that are not JSON: `read_annotations` reads these.
    """
    if path.suffix == ".jsonl" and '"references"' in (text := read_text(path)).partition("\n")[0]:
        rows = [row for _, row in parse_json_lines(text.split("\n"), path)]
        try:
            return {row["id"]: row["references"] for row in rows}
        except (KeyError, TypeError):
            raise UserError(f"{path}: a line has no id or references: correct it") from None
    document = read_json(path) if is_json(path) else None
    if not isinstance(document, dict):
        return None
    karpathy = isinstance(document.get("images"), list) and "annotations" not in document
    return None if karpathy else document


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
    if not kept:
        match_ids(captions, references)  # raises UserError
    return kept, [image_id for image_id in captions if image_id not in kept]


def match_ids(captions: Captions, references: Mapping[ImageId, Sequence[str]]) -> References:
    """Return {id in `captions`: references}. Ids are matched as in `of_images`.

    Raises UserError for the first caption without references.
    """
    by_text = {}
    for image_id in captions:  # 139 and "139" would get the same references
        other = by_text.setdefault(str(image_id), image_id)
        if other != image_id and not {other, image_id} <= references.keys():
            raise UserError(
                f"image_id {other!r} and {image_id!r} are the same image with two predictions: "
                "keep one of them"
            )
    matched = of_images(captions, references)
    missing = [image_id for image_id, group in matched.items() if not group]
    if missing and len(missing) == len(captions):
        raise UserError(
            "predictions and references have no image id in common: the first ones are "
            f"{missing[0]!r} and {next(iter(references), None)!r}"
        )
    if missing:
        raise UserError(
            f"image_id {missing[0]!r} has a prediction but no reference captions: give the "
            "references of the same images"
        )
    return {image_id: list(group) for image_id, group in matched.items()}


def by_id(ids: Iterable[ImageId], known: Mapping[ImageId, Any]) -> dict[ImageId, Any]:
    """Return {id: its entry in `known`}, such as its references; () for an unknown id.

    The ids "139" and 139 name the same image, unless both are in `known`.
    """
    as_text = {str(image_id): entry for image_id, entry in known.items()}
    return {
        image_id: known[image_id] if image_id in known else as_text.get(str(image_id), ())
        for image_id in ids
    }


def of_images(ids: Iterable[ImageId], known: Mapping[ImageId, Any]) -> dict[ImageId, Any]:
    """Like `by_id`, but an unknown caption id such as "a.jpg#0" gets the entry of image "a.jpg".

    Flickr8k's files number the captions of an image in this way.
    """
    found = by_id(ids, known)
    numbered = [image_id for image_id, entry in found.items() if entry == ()]
    images = by_id(map(image_of, numbered), known)
    return {**found, **{image_id: images[image_of(image_id)] for image_id in numbered}}


def image_of(caption_id: ImageId) -> ImageId:
    """Return the image id of a caption id: "a.jpg" for "a.jpg#0". Other ids stay unchanged."""
    return re.sub(r"#\d+\Z", "", caption_id) if isinstance(caption_id, str) else caption_id


def _pairs(entries: Iterable[Any], where: str, ids: Mapping[str, ImageId] = NO_IDS):
    """Yield (image id, caption) of each entry. ids: see `read_predictions`.

    Raises UserError for an entry without an id or a caption.
    """
    for number, entry in enumerate(entries, start=1):
        fields = entry if isinstance(entry, dict) else {}
        image_id, caption = fields.get("image_id"), fields.get("caption")
        if image_id is None and isinstance(fields.get("image"), str):
            name = named_in(fields["image"], ids)
            other = fields.get("id", derived_id(fields["image"]))
            image_id = other if name is None else ids[name]
        elif image_id is None:
            image_id = fields.get("id")
        if type(image_id) not in (int, str):  # isinstance would accept a bool
            raise UserError(f"{where}: entry {number} has no image_id (an integer or a string)")
        if not isinstance(caption, str):
            raise UserError(f"{where}: entry {number} (image_id {image_id!r}) has no caption text")
        yield image_id, caption
