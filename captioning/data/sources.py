"""The data sets that are known by name: which files they consist of and where those come from."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Optional, Union

from captioning.data.annotations import ImageId, Sample, read_annotations
from captioning.data.caption_files import by_id, read_references
from captioning.data.division import divided
from captioning.data.shards import Shards
from captioning.files.local_copies import local, located
from captioning.files.stores import is_store, joined
from captioning.files.tars import expand, is_tars
from captioning.runtime.errors import UserError

BUCKET = "https://storage.googleapis.com/sfr-vision-language-research/datasets/"

# Of the files as BLIP's authors distribute them; for the training files it is not known.
SHA256 = {
    "coco_karpathy_val.json": "51f6dcf544cc0d3bd7086b1cd5aa3dcc9a26fcc718e623099027a902da06a848",
    "coco_karpathy_test.json": "5b202a235ee2a4e13f82b984ef9293b8e2d34f9b1f92147bf8340580f20faf15",
    "coco_karpathy_val_gt.json": "e82b3139b7277b06458f9cfd214b3307247b4c0283453acc47ba5356d4b489fd",
    "coco_karpathy_test_gt.json": (
        "bb18f0d9d79c27c9c6e0d761645835ea9ac110f95e056b2279b54f6d132229a2"
    ),
    "flickr30k_test.json": "5d2a8e7365ff2220cf885e3fb656dd33b72b3a8f8c761067deebb0b22718806d",
}

LARGEST = 1 << 30  # bytes of an annotation file; COCO's for training has 80 million


class Source(NamedTuple):
    """The file names of a data set, by split; those it lacks come from the configuration."""

    annotations: dict[str, str]
    references: dict[str, str]


SOURCES = {
    "coco": Source(
        {split: f"coco_karpathy_{split}.json" for split in ("train", "val", "test")},
        {split: f"coco_karpathy_{split}_gt.json" for split in ("val", "test")},
    ),
    "flickr30k": Source(
        {split: f"flickr30k_{split}.json" for split in ("train", "val", "test")}, {}
    ),
    "custom": Source({}, {}),
}


def annotation_paths(config, split: str) -> list[Path]:
    """Return the annotation files of `split` ("train", "val" or "test"), downloaded if need be.

    `config` has dataset, ann_root and {train,val,test}_file; the name or names given there go
    before the data set's own. Raises UserError if there is no name or a file cannot be had.
    """
    known_name = SOURCES[config.dataset].annotations.get(split)
    name = getattr(config, f"{split}_file") or known_name
    if name is None:
        otherwise = "" if split == "train" else ", or divide train_file by the key split"
        raise UserError(
            f"dataset: {config.dataset} needs {split}_file: set it to the annotation file of "
            f"split {split}, relative to ann_root{otherwise}"
        )
    names = name if isinstance(name, list) else [name]
    if any(map(is_tars, names)):
        raise UserError(
            f"{split}_file: {next(filter(is_tars, names))} is for training, and alone: name "
            "annotation files, or tars as train_file"
        )
    return [_located(config.ann_root, each, known_name) for each in names]


def training_tars(config) -> list[str]:
    """The tars that `train_file` names, in `ann_root` or a store; none where it names other files.

    Raises UserError.
    """
    names = config.train_file or []
    names = names if isinstance(names, list) else [names]
    if not names or not all(map(is_tars, names)):
        return []
    if not find_spec("webdataset"):
        raise UserError("train_file: tars need the webdataset library: pip install webdataset")
    tars = []
    for name in names:
        tars += expand(joined(config.ann_root, name))
    packed = [tar for tar in tars if not tar.endswith(".tar")]
    if packed:
        raise UserError(f"train_file: {packed[0]}: unpack it with gunzip: its samples lie anywhere")
    if len({tar.partition("://")[0] for tar in tars if is_store(tar)}) > 1:
        raise UserError("train_file: tars are in stores of two kinds: name those of one")
    if len(set(tars)) < len(tars):
        raise UserError(f"train_file: {max(tars, key=tars.count)} is named twice: name it once")
    return tars


def read_split(config, split: str) -> Union[list[Sample], Shards]:
    """Return the samples of `split`, of one file after the other.

    Raises UserError as `annotation_paths` and the reader do, and for an image id in two files.
    """
    if split == "train" and (tars := training_tars(config)):
        return Shards(tars)
    if not config.split:
        return _read(config, split, split)
    splits = _divided(config, _read(config, "train", None))
    if split not in splits:
        raise UserError(f"split divides train_file without {split}: add it")
    return splits[split]


def described_division(config) -> str:
    """How many photos each split has. Raises UserError where photos are not in image_root."""
    samples = _read(config, "train", None)
    splits = _divided(config, samples)
    divided_up = [sample for part in splits.values() for sample in part]
    if not is_store(config.image_root) and not config.skip_bad_images:
        paths = [Path(config.image_root, sample.image) for sample in divided_up]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise UserError(
                f"{len(missing)} of {len(paths)} photos are not there, the first is {missing[0]}: "
                "correct image_root, or pass over them with skip_bad_images=true"
            )
    counts = ", ".join(f"{len(part):,} {name}" for name, part in splits.items())
    left_out = len(samples) - len(divided_up)
    rest = f", {left_out:,} in no list" if left_out else ""
    return f"split of {config.train_file}: {counts} photos{rest}"


def _divided(config, samples: list[Sample]) -> dict[str, list[Sample]]:
    return divided(samples, config.split, lambda name: located(config.ann_root, name))


def _read(config, files: str, split: Optional[str]) -> list[Sample]:
    """The samples of the annotation files of a split, all of them or those of a split in them."""
    samples: list[Sample] = []
    owner: dict[ImageId, Path] = {}
    for path in annotation_paths(config, files):
        of_file = read_annotations(path, split)
        within = _folder_within(config.image_root, path, of_file[0].image)
        of_file = [s._replace(image=os.path.join(within, s.image)) for s in of_file]
        for sample in of_file:
            if sample.image_id in owner:
                raise UserError(
                    f"{owner[sample.image_id]} and {path} both have image id {sample.image_id!r}: "
                    "name each file once, and give each image an image_id of its own"
                )
        owner.update((sample.image_id, path) for sample in of_file)
        samples += of_file
    return samples


def _folder_within(image_root: str, path: Path, first: str) -> str:
    """Where in image_root the images of an annotation file are, the first of which is `first`.

    Those of a folder are in it. COCO's captions_val2017.json leaves out val2017.
    """
    if path.is_dir() and not is_store(image_root):
        folder = os.path.relpath(path, image_root)
        return "" if folder == os.curdir else folder
    folder = path.stem[len("captions_") :] if path.stem.startswith("captions_") else ""
    if folder and not Path(image_root, first).exists():
        return folder if Path(image_root, folder, first).is_file() else ""
    return ""


def references(config, split: str) -> dict[ImageId, list[str]]:
    """Return the human captions of each image of `split`, by image id, in the split's order.

    They are read from the {val,test}_gt_file of `config` (relative to coco_gt_root) or the data
    set's own; without one they are the captions in the annotation. Raises UserError if the file
    has none for some image.
    """
    samples = read_split(config, split)
    path = _reference_path(config, split)
    if path is None:
        return {sample.image_id: list(sample.captions) for sample in samples}
    captions = by_id([sample.image_id for sample in samples], read_references(path))
    missing = [sample for sample in samples if not captions[sample.image_id]]
    if missing:
        raise UserError(
            f"{path}: no reference captions for {len(missing)} of {len(samples)} images, the first "
            f"is {missing[0].image} (image id {missing[0].image_id!r}): use the file of this split"
        )
    return {sample.image_id: captions[sample.image_id] for sample in samples}


def _reference_path(config, split: str) -> Optional[Path]:
    source = SOURCES[config.dataset]
    known_name = source.references.get(split)
    name = getattr(config, f"{split}_gt_file", None)  # there is no train_gt_file
    own = getattr(config, f"{split}_file") in (None, source.annotations.get(split))
    if name is None and own and not config.split:
        # Of an annotation file that is not its own, the data set's references say nothing.
        name = known_name
    if name is None:
        return None
    if config.coco_gt_root is None:
        raise UserError(f"coco_gt_root is not set: it names the folder of {name}")
    return _located(config.coco_gt_root, name, known_name)


def _located(folder: str, name: str, known_name: Optional[str]) -> Path:
    """Return the path of a file, downloaded if it is missing and `known_name` is its name.

    Of one in a store, which has to be there, it is that of its copy.
    """
    place = joined(folder, name)
    if name != known_name or is_store(place):
        return local(place)
    return fetched(BUCKET + name, Path(place), SHA256.get(name))


def fetched(url: str, path: Path, sha256: Optional[str]) -> Path:
    """Return `path`, to which `url` is downloaded if nothing is there.

    sha256: of what is downloaded; None if it is not known. Raises UserError.
    """
    if path.exists():
        return path
    from BLIP.weights.download import DownloadError, download  # only a missing file needs it

    try:
        download(url, path, sha256=sha256, largest=LARGEST)
    except DownloadError as error:
        raise UserError(f"{error}; to go on without a network, put {url} at {path}") from error
    return path
