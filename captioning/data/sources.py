"""Finds or downloads the annotation files of each split, and reads the samples in these files.

The parameter `config` of the functions is a `captioning.config.Config`.
"""

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Optional, Union

from tqdm.contrib.concurrent import thread_map

from captioning.data.annotations import ImageId, Sample, read_annotations
from captioning.data.caption_files import of_images, read_references
from captioning.data.division import divided
from captioning.data.shards import Shards
from captioning.files.cache import download_once, local
from captioning.files.stores import is_store, join
from captioning.files.tables import is_row
from captioning.files.tars import expand, is_tars
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

BUCKET = "https://storage.googleapis.com/sfr-vision-language-research/datasets/"

# Hashes of files that BLIP's authors distribute. The hashes of training files are unknown, so that
# these files are not verified.
SHA256 = {
    "coco_karpathy_val.json": "51f6dcf544cc0d3bd7086b1cd5aa3dcc9a26fcc718e623099027a902da06a848",
    "coco_karpathy_test.json": "5b202a235ee2a4e13f82b984ef9293b8e2d34f9b1f92147bf8340580f20faf15",
    "coco_karpathy_val_gt.json": "e82b3139b7277b06458f9cfd214b3307247b4c0283453acc47ba5356d4b489fd",
    "coco_karpathy_test_gt.json": (
        "bb18f0d9d79c27c9c6e0d761645835ea9ac110f95e056b2279b54f6d132229a2"
    ),
    "flickr30k_test.json": "5d2a8e7365ff2220cf885e3fb656dd33b72b3a8f8c761067deebb0b22718806d",
}

STATS_AT_ONCE = 16  # a network disk answers several at once
CHUNK = 256  # files that a thread looks for in a row
SHOWN_FROM = 100_000  # with more photos there is a bar


# File names of known data sets; {} stands for the split. For another data set, the configuration
# has to name the files.
ANNOTATIONS = {"coco": "coco_karpathy_{}.json", "flickr30k": "flickr30k_{}.json"}
REFERENCES = {("coco", split): f"coco_karpathy_{split}_gt.json" for split in ("val", "test")}


def known_annotation(dataset: str, split: str) -> Optional[str]:
    """Return the name of a known data set's annotation file; None for another data set."""
    return ANNOTATIONS.get(dataset, "").format(split) or None


def _names(value: Union[str, list[str], None]) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []


def annotation_paths(config, split: str) -> list[Path]:
    """Return the annotation files of a split ("train", "val" or "test").

    Missing files of a known data set are downloaded. The keys train_file, val_file and test_file
    name other files to use. Raises UserError if no file is known or named, or if a file is not
    available.
    """
    known_name = known_annotation(config.dataset, split)
    names = _names(getattr(config, f"{split}_file") or known_name)
    if not names:
        otherwise = "" if split == "train" else ", or divide train_file by the key split"
        raise UserError(
            f"dataset: {config.dataset} needs {split}_file: set it to the annotation file of "
            f"split {split}, relative to ann_root{otherwise}"
        )
    for tars in filter(is_tars, names):
        raise UserError(
            f"{split}_file: {tars}: only train_file can be tars, and then all its files must be "
            "tars: name annotation files, or only tars as train_file"
        )
    return [_find_or_download(config.ann_root, name, known_name) for name in names]


def training_tars(config) -> list[str]:
    """Return the tars of `train_file`, in `ann_root` or a store. Raises UserError.

    Returns [] if `train_file` does not name tars only.
    """
    names = _names(config.train_file)
    if not all(map(is_tars, names)):
        return []
    tars = [tar for name in names for tar in expand(join(config.ann_root, name))]
    if packed := next((tar for tar in tars if not tar.lower().endswith(".tar")), None):
        raise UserError(
            f"train_file: {packed} is compressed, which allows no random access: unpack it with "
            "gunzip"
        )
    return list(dict.fromkeys(tars))


def read_split(config, split: str) -> Union[list[Sample], Shards]:
    """Return the samples of `split`, in the order of the annotation files.

    For training tars, the samples are read lazily by `Shards`. Raises UserError, for example if two
    files contain the same image id.
    """
    if split == "train" and (tars := training_tars(config)):
        return Shards(tars, config.skip_bad_images)
    if not config.split:
        return _read_samples(config, files_of=split, split=split)
    samples = _read_samples(config, files_of="train", split=None)
    splits = divided(samples, config.split, config.ann_root)
    if split not in splits:
        raise UserError(f"split divides train_file, but has no {split}: add it")
    return splits[split]


def check_images(config, samples: Iterable[Sample]) -> None:
    """Check that photos exist. With skip_bad_images, count those that do not. Raises UserError."""
    images = dict.fromkeys(sample.image for sample in samples)
    paths = [os.path.join(config.image_root, image) for image in images]
    missing_by_chunk = thread_map(
        _absent,
        [paths[first : first + CHUNK] for first in range(0, len(paths), CHUNK)],
        max_workers=STATS_AT_ONCE,
        desc="checking photos",
        unit="img",
        unit_scale=CHUNK,
        disable=len(paths) <= SHOWN_FROM,
    )
    if missing := [path for absent in missing_by_chunk for path in absent]:
        count = f"{len(missing):,} of {len(paths):,} photos do not exist or are empty"
        line = f"{count}, such as {missing[0]}"
        if not config.skip_bad_images:
            raise UserError(
                f"{line}: correct image_root, or set skip_bad_images=true to leave them out"
            )
        log_line(line)


def _absent(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not (_has_content(path) or is_row(path))]


def _has_content(path: str) -> bool:
    with suppress(OSError, ValueError):
        status = os.stat(path)
        return stat.S_ISREG(status.st_mode) and status.st_size > 0
    return False


def _read_samples(config, files_of: str, split: Optional[str]) -> list[Sample]:
    """Return the samples of a split's annotation files, with images relative to image_root.

    files_of: the split whose annotation files are read. split: the split to select within a file in
    Karpathy's format, which contains all splits; None for all.
    """
    samples, owner = [], {}
    for path in annotation_paths(config, files_of):
        file_samples = read_annotations(path, split, config.skip_bad_images)
        folder = _folder_within(config.image_root, path, file_samples[0].image)
        for sample in file_samples:
            if owner.setdefault(sample.image_id, path) is not path:
                raise UserError(
                    f"{owner[sample.image_id]} and {path} both have image id {sample.image_id!r}: "
                    "name each file once, and give each image a different image_id"
                )
            image = os.path.normpath(os.path.join(folder, sample.image))
            samples.append(sample._replace(image=image))
    return samples


def _folder_within(image_root: str, path: Path, first: str) -> str:
    """Return the folder of an annotation file's images, relative to image_root.

    path: the annotation file. first: its first image, as named in the file. If `path` is a folder
    of photos, the images are in this folder. The images of COCO's captions_val2017.json may be in
    the folder val2017.
    """
    if path.is_dir() and not is_store(image_root):
        # Of a link, `..` is the parent of its target.
        return os.path.relpath(os.path.realpath(path), os.path.realpath(image_root))
    folder = path.stem.removeprefix("captions_")
    in_folder = not Path(image_root, first).exists() and Path(image_root, folder, first).is_file()
    return folder if in_folder else ""


def references(config, split: str, samples: Iterable[Sample]) -> dict[ImageId, list[str]]:
    """Return {image id: references} for the samples of `split`.

    References are read from val_gt_file or test_gt_file (relative to coco_gt_root), or from the
    reference file of a known data set. Without such a file, the references are the captions of the
    samples. Raises UserError if the file has no references for an image.
    """
    captions = {sample.image_id: list(sample.captions) for sample in samples}
    path = _reference_path(config, split)
    if path is None:
        return captions
    matched = of_images(captions, read_references(path))
    missing = [sample for sample in samples if not matched[sample.image_id]]
    if missing:
        raise UserError(
            f"{path}: no reference captions for {len(missing)} of {len(captions)} images, the "
            f"first is {missing[0].image} (image id {missing[0].image_id!r}): use the file of this "
            "split"
        )
    return matched


def _reference_path(config, split: str) -> Optional[Path]:
    known_name = REFERENCES.get((config.dataset, split))
    name = getattr(config, f"{split}_gt_file", None)  # there is no train_gt_file
    is_known = getattr(config, f"{split}_file") in (None, known_annotation(config.dataset, split))
    # The known references belong to the known annotation file, not to a file that the user names.
    if name is None and is_known and not config.split:
        name = known_name
    if name is None:
        return None
    if config.coco_gt_root is None:
        raise UserError(f"coco_gt_root is not set: set it to the folder of {name}")
    return _find_or_download(config.coco_gt_root, name, known_name)


def _find_or_download(folder: str, name: str, known_name: Optional[str]) -> Path:
    """Return the local path of a file.

    A missing file is downloaded from BLIP's bucket if its name is `known_name`. A file in a store
    must exist; the path of the local copy is returned.
    """
    place = join(folder, name)
    if name != known_name or is_store(place):
        return local(place)
    return download_once(BUCKET + name, Path(place), SHA256.get(name))
