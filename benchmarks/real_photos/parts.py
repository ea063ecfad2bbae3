"""Divides the training photos between a captioner and its judge, and writes annotation files."""

from collections.abc import Sequence
from pathlib import Path

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.randomness import derived_seed, permutation
from captioning.data.sources import read_split
from captioning.files.writing import write_json
from captioning.runtime.errors import UserError

PARTS = 3  # of equal size: one part is for the judge, the others are for the captioner
# Folders of a seed: START for the captioner from which fine-tuning starts, JUDGE for the judge.
START, JUDGE = "start", "judge"


def write_parts(config: Config, seed: int, folder: Path) -> dict[str, str]:
    """Write the annotation files of a seed's captioner and judge; return {START or JUDGE: path}.

    The judge gets one part of the training photos, which depends on the seed, and the validation
    split. The captioner gets the other parts. Raises UserError if there are too few photos.
    """
    samples = read_split(config, "train")
    if len(samples) < PARTS:
        raise UserError(f"train_file: {len(samples)} photos; at least {PARTS} are needed")
    order = permutation(len(samples), derived_seed("parts"))
    judge_indices = set(order[seed % PARTS :: PARTS])
    parts = {
        START: [sample for n, sample in enumerate(samples) if n not in judge_indices],
        JUDGE: [samples[n] for n in sorted(judge_indices)] + read_split(config, "val"),
    }
    return {name: _write_annotations(part, folder / f"{name}.json") for name, part in parts.items()}


def write_subsets(config: Config, counts: dict[str, int], folder: Path) -> list[str]:
    """Write annotation files with a subset of each split; return the overrides that use the files.

    counts: {split: number of photos}. The photos of a subset are evenly spaced in the split.
    """
    files = {}
    for split, count in counts.items():
        samples = read_split(config, split)
        subset = samples[:: max(1, len(samples) // count)][:count]
        files[split] = _write_annotations(subset, folder / f"{split}.json")
    return [f"{split}_file={path}" for split, path in files.items()]


def _write_annotations(samples: Sequence[Sample], path: Path) -> str:
    """Write an annotation file, and return its absolute path."""
    rows = [
        {"image": sample.image, "caption": list(sample.captions), "image_id": sample.image_id}
        for sample in samples
    ]
    write_json(rows, path)
    return str(path.resolve())  # a relative path would be joined with ann_root
