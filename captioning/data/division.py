"""Divides a data set into splits, by shares and a seed or by lists of names."""

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from captioning.data.annotations import Sample
from captioning.data.randomness import derived_seed
from captioning.files import rows
from captioning.files.stores import join
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_once

SPLITS = ("train", "val", "test")


def checked_division(split: dict[str, Any], seed: int) -> dict[str, Any]:
    """Check and return the value of the configuration key `split`. Raises ValueError.

    The value is {split: share of the photos} or {split: file with a list of names}. Shares may come
    with a key seed; without it, `seed` is added.
    """
    if all(isinstance(value, str) for value in split.values()):
        parts, valid = split, set(split) <= set(SPLITS)
    else:
        parts = {"seed": seed, **split}
        shares = [value for name, value in parts.items() if name != "seed"]
        valid = set(parts) <= {"val", "test", "seed"} and type(parts["seed"]) is int
        valid = (
            valid and all(type(each) is float and each > 0 for each in shares) and sum(shares) < 1
        )
    if not valid or "val" not in parts:
        raise ValueError(
            "it must be shares of the photos, such as {val: 0.05, test: 0.05}, or files in "
            "ann_root with lists of names, such as {train: a.txt, val: b.txt, test: c.txt}"
        )
    return parts


def divided(
    samples: Sequence[Sample], split: dict[str, Any], folder: str
) -> dict[str, list[Sample]]:
    """Return {split: samples} for train and each split in `split`, in the order of `samples`.

    With shares, photos are sorted by a hash of file name and seed, so that the order of samples has
    no effect. Folders decide only between photos with equal file names. With lists, train has all
    photos that are in no list, unless there is a list for train. folder: that of the lists, on disk
    or in a store. Raises UserError.
    """
    if isinstance(split["val"], str):
        split_of = _split_by_lists(samples, split, folder)
    else:
        split_of = _split_by_shares(samples, split)
    parts = {name: [] for name in SPLITS if name in (*split, "train")}
    unlisted = [] if "train" in split else parts["train"]
    for sample in samples:
        parts.get(split_of.get(sample.image), unlisted).append(sample)
    if "train" in split and unlisted:
        log_once(f"split: {len(unlisted):,} of {len(samples):,} photos are in no list")
    for name, part in parts.items():
        if not part:
            raise UserError(
                f"split: {name} has none of the {len(samples)} photos: assign some to {name}"
            )
    return parts


def _split_by_shares(samples: Sequence[Sample], split: dict[str, Any]) -> dict[str, str]:
    """Return {image: split} of the images that are not for training."""

    def rank(image: str) -> tuple[int, str]:
        return derived_seed(f"split {PurePosixPath(image).name}", split["seed"]), image

    order = sorted((sample.image for sample in samples), key=rank)
    val, test = (round(split.get(name, 0) * len(order)) for name in ("val", "test"))
    return dict(zip(order, ["val"] * val + ["test"] * test))


def _split_by_lists(
    samples: Sequence[Sample], split: dict[str, str], folder: str
) -> dict[str, str]:
    """Return {image: split} of the listed images. Lists may omit the suffix of a file name."""
    known = {os.path.splitext(sample.image)[0]: sample.image for sample in samples}
    known.update((sample.image, sample.image) for sample in samples)
    split_of = {}
    for name, file in split.items():
        path = join(folder, file)
        listed = [row["image"] for row in rows.read(path, needs=["image"])]
        unknown = [image for image in listed if image not in known]
        if unknown:
            raise UserError(
                f"{path}: {len(unknown)} of {len(listed)} photos have no captions in train_file, "
                f"the first is {unknown[0]}: list photos by their names in train_file"
            )
        for image in listed:
            if split_of.setdefault(known[image], name) != name:
                raise UserError(
                    f"{path}: {image} is also in the list of {split_of[known[image]]}: a photo can "
                    "be in only one split"
                )
    return split_of
