"""The photos of a captioner and those of its judge."""

from collections.abc import Sequence
from pathlib import Path

from captioning.config import Config
from captioning.data import Sample, read_split
from captioning.data.randomness import derived_seed, permutation
from captioning.files.writing import write_json
from captioning.runtime.errors import UserError

PARTS = 3  # of the training photos: the judge has one, the captioner the others
SPLITS = ("train", "val", "test")
START, JUDGE = "start", "judge"  # the folders of a seed's captioner, before tuning, and its judge


def write_parts(config: Config, seed: int, folder: Path) -> dict[str, str]:
    """Write the annotation files of a seed's captioner and judge, and return their paths.

    The part of the training photos that the judge gets rotates with the seed. The judge is also
    trained on the validation split, so the captioner has seen none of its photos. Raises UserError.
    """
    samples = read_split(config, "train")
    if len(samples) < PARTS:
        raise UserError(f"train_file: {len(samples)} photos; it takes {PARTS} or more")
    order = permutation(len(samples), derived_seed("parts"))
    judges = set(order[seed % PARTS :: PARTS])
    of = {
        START: [sample for n, sample in enumerate(samples) if n not in judges],
        JUDGE: [samples[n] for n in sorted(judges)] + read_split(config, "val"),
    }
    return {name: _write(part, folder / f"{name}.json") for name, part in of.items()}


def write_few(config: Config, counts: dict[str, int], folder: Path) -> list[str]:
    """Write files of the first so many photos of each split; overrides that name them."""
    files = {}
    for split, count in counts.items():
        few = read_split(config, split)[:count]
        files[split] = _write(few, folder / f"{split}.json")
    return [f"{split}_file={path}" for split, path in files.items()]


def _write(samples: Sequence[Sample], path: Path) -> str:
    rows = [
        {"image": sample.image, "caption": list(sample.captions), "image_id": sample.image_id}
        for sample in samples
    ]
    write_json(rows, path)
    return str(path.resolve())  # ann_root stands before a relative one
