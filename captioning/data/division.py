"""A data set that comes without splits, divided: by shares and a seed, or by lists of names."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Callable

from captioning.data.annotations import Sample
from captioning.data.randomness import derived_seed
from captioning.files.images import read_list
from captioning.runtime.errors import UserError

SPLITS = ("train", "val", "test")


def checked_division(split: dict[str, Any], seed: int) -> dict[str, Any]:
    """The key `split`; shares get a `seed`, if they have none. Raises ValueError."""
    lists = all(isinstance(value, str) for value in split.values())
    parts = dict(split) if lists else {"seed": seed, **split}
    shares = {name: value for name, value in parts.items() if name != "seed"}
    if lists:
        right = set(parts) <= set(SPLITS)
    else:
        fractions = all(type(share) is float and share > 0 for share in shares.values())
        right = fractions and sum(shares.values()) < 1 and type(parts["seed"]) is int
        right = right and set(shares) <= {"val", "test"}
    if not right or "val" not in parts:
        raise ValueError(
            "it has to be shares of the photos, such as {val: 0.05, test: 0.05}, or lists of names "
            "in ann_root, such as {train: a.txt, val: b.txt, test: c.txt}"
        )
    return parts


def divided(
    samples: Sequence[Sample], split: dict[str, Any], located: Callable[[str], Path]
) -> dict[str, list[Sample]]:
    """The samples of each split that `split` names, and of train, in the order of `samples`.

    Shares go by the names of the photos' files: not by their folder, nor by the order of the lines.
    Where there are lists and none of train, it has what is in none. located: where a list is.
    Raises UserError.
    """
    by_lists = isinstance(split["val"], str)
    split_of = _of_lists(samples, split, located) if by_lists else _of_shares(samples, split)
    rest = None if "train" in split else "train"
    found: dict[str, list[Sample]] = {name: [] for name in SPLITS if name in (*split, "train")}
    for sample in samples:
        name = split_of.get(sample.image, rest)
        if name:
            found[name].append(sample)
    empty = [name for name, part in found.items() if not part]
    if empty:
        raise UserError(
            f"split: {empty[0]} has none of the {len(samples)} photos: give it more of them"
        )
    return found


def _of_shares(samples: Sequence[Sample], split: dict[str, Any]) -> dict[str, str]:
    """The split of each image that is not for training."""

    def place(image: str) -> tuple[int, str]:
        return derived_seed(f"split {PurePosixPath(image).name}", split["seed"]), image

    order = sorted((sample.image for sample in samples), key=place)
    val, test = (round(split.get(name, 0) * len(order)) for name in ("val", "test"))
    names = ["val"] * val + ["test"] * test
    return dict(zip(order, names))


def _of_lists(
    samples: Sequence[Sample], split: dict[str, str], located: Callable[[str], Path]
) -> dict[str, str]:
    """The split of each image that a list names, with or without its suffix."""
    known = {os.path.splitext(sample.image)[0]: sample.image for sample in samples}
    known.update((sample.image, sample.image) for sample in samples)
    split_of: dict[str, str] = {}
    for name, file in split.items():
        path = located(file)
        listed = [item.image for item in read_list(path)]
        lacking = [image for image in listed if image not in known]
        if lacking:
            raise UserError(
                f"{path}: {len(lacking)} of {len(listed)} photos have no captions in train_file, "
                f"the first is {lacking[0]}: list photos by their names there"
            )
        for image in listed:
            if split_of.setdefault(known[image], name) != name:
                raise UserError(
                    f"{path}: {image} is in the list of {split_of[known[image]]}, too: a photo "
                    "belongs to one split"
                )
    return split_of
