"""Groups the rows of annotation files into samples: images, their captions and their ids."""

import os
import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import NamedTuple, Optional, Union

from captioning.files import rows
from captioning.files.columns import COLUMNS, prompt_of
from captioning.files.reading import StrPath
from captioning.files.stores import ByteRange
from captioning.files.tables import is_table
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_once

ImageId = Union[int, str]


class Sample(NamedTuple):
    """An image and its human captions."""

    image: str  # path as in the annotation file, relative to image_root; or TAR/NAME
    captions: tuple[str, ...]  # at least one, unchanged
    image_id: ImageId  # identifies the image in results and references
    prompt: Optional[str] = None  # replaces the captioner's default prompt
    span: Optional[ByteRange] = None  # of the image in a tar


def read_annotations(
    path: StrPath, split: Optional[str] = None, skip_bad: bool = False
) -> list[Sample]:
    """Return the samples of a file or folder, in the order of its images.

    path: in a format of `captioning.files.rows`.

    split: the split to read from a file in Karpathy's format (train, val or test); None for all.

    skip_bad: bad rows and images without a caption are left out, and counted in log lines.

    Rows of one image become one sample; blank captions are left out and counted. Rows must agree on
    `image_id` and `prompt`, as far as they have them.

    If an image has no `image_id`, its id is the number at the end of its file name
    (COCO_val2014_000000000042.jpg is 42), or its path if there is no number. If two such numbers
    are equal, all images without `image_id` get their paths as ids. This happens in Flickr8k, where
    file names end in hashes.

    Raises UserError, which names file and row, for missing or malformed entries and for two images
    with the same id.
    """
    bad: list[str] = []
    listed = read_samples(path, split, ["image"], bad)
    samples = [sample for sample in listed if sample.captions]
    advice = "; or set skip_bad_images=true to leave them out" if samples else ""
    if bad:
        if not (skip_bad and samples):
            raise UserError(f"{bad[0]}{advice}")
        log_once(f"{len(bad):,} bad rows are left out: {bad[0]}")
    if len(samples) < len(listed):
        first = next(sample.image for sample in listed if not sample.captions)
        count = f"{len(listed) - len(samples):,} of {len(listed):,} images have no caption"
        line = f"{path}: {count}, such as {first}"
        if not (skip_bad and samples):
            advice = advice or "; scripts/caption.sh needs none"
            raise UserError(
                f"{line}: expected text in a column {', '.join(COLUMNS['captions'])}{advice}"
            )
        log_once(f"{line}: they are left out")  # a split is read several times
    if not samples:
        in_split = f" of split {split}" if split else ""
        raise UserError(f"{path}: no samples{in_split}: check that this is the right file")
    return samples


def read_samples(
    path: StrPath,
    split: Optional[str] = None,
    needs: Collection[str] = (),
    bad: Optional[list[str]] = None,
) -> list[Sample]:
    """Like `read_annotations`, but a sample may have no captions, or no image if it has an id.

    needs, bad: see `rows.read`. A sample without an image has its id as image.
    """
    in_table = is_table(path)
    captions, ids, prompts = {}, {}, {}  # each by the image
    blank = []  # the image of each
    for row in rows.read(path, split, needs=needs, bad=bad):
        image_id = row.get("image_id")
        image = row.get("image", image_id)
        if image is None:
            raise UserError(f"{row.where} has no image and no image_id: add one")
        if in_table:
            image = os.path.abspath(image)  # a relative path would be looked for in image_root
        texts = row.get("references") or row.get("captions", ())
        kept = [text for text in texts if text.strip()]
        blank += [image] * (len(texts) - len(kept))
        captions.setdefault(image, []).extend(kept)
        for key, known, value in (
            ("image_id", ids, image_id),
            ("prompt", prompts, prompt_of(row)),
        ):
            if value is not None and (earlier := known.setdefault(image, value)) != value:
                raise UserError(
                    f"{row.where}: {image} has the {key} {value!r} here and {earlier!r} before: "
                    f"give an image one {key}"
                )
    if blank:
        total = len(blank) + sum(map(len, captions.values()))
        log_once(f"{path}: {len(blank):,} of {total:,} captions are blank, such as of {blank[0]}")
    derived = {image: derived_id(image) for image in captions if image not in ids}
    if len(set(derived.values())) < len(derived):
        derived = {image: image for image in derived}
    ids, image_of, samples = {**ids, **derived}, {}, []
    for image, texts in captions.items():
        if (other := image_of.setdefault(ids[image], image)) != image:
            raise UserError(
                f"{path}: {other} and {image} have the same image id {ids[image]!r}: give each "
                "image a different image_id"
            )
        samples.append(Sample(image, tuple(texts), ids[image], prompts.get(image)))
    return samples


def derived_id(image: str) -> ImageId:
    """Return the id of an image without `image_id`; see `read_annotations`."""
    # At most 100 digits, because Python refuses to parse numbers of thousands of digits.
    digits = re.search(r"(?<![0-9])[0-9]{1,100}\Z", PurePosixPath(image).stem)
    return int(digits.group()) if digits else image
