"""Reads a data set from a file of tensors with images and caption ids, such as `coco.pt`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from BLIP.weights.safe_load import PickledError, read_pickled
from captioning.runtime.errors import UserError

SPLITS = ("train", "val")
KEYS = ("train_images", "train_captions", "val_images", "val_captions", "vocab")
INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)
START, END, PADDING, UNKNOWN = "<START>", "<END>", "<NULL>", "<UNK>"


class Split(NamedTuple):
    """The train or val split of the data set.

    images: uint8 (N, 3, H, W). captions: N texts, in which <unk> stands for an unknown word.
    """

    images: Tensor
    captions: list[str]


def read_tensor_file(path: Path) -> dict[str, Split]:
    """Return {split: images and captions} of a file, without running code from the file.

    The file is a dict with KEYS. The images are uint8 (N, 3, H, W) and the captions integers
    (N, L). `vocab` has `idx_to_token`, a list, and `token_to_idx`, a dict. Raises
    UserError with what is wrong with the file.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        content = read_pickled(path)
    except (PickledError, OSError) as error:
        raise UserError(f"{path} {error}") from None
    if not isinstance(content, dict) or not set(KEYS) <= set(content):
        found = ", ".join(map(str, content)) if isinstance(content, dict) else type(content)
        raise UserError(f"{path}: expected the keys {', '.join(KEYS)}; found {found or 'none'}")
    words = _words(content["vocab"], path)
    return {split: _split(content, split, words, path) for split in SPLITS}


def _words(vocab: Any, path: Path) -> list[str]:
    """Return the list of words, indexed by id. Raises UserError for a wrong vocabulary."""
    tables = vocab if isinstance(vocab, Mapping) else {}
    words, ids = tables.get("idx_to_token"), tables.get("token_to_idx")
    is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if not is_list or ids != {word: number for number, word in enumerate(words)}:
        raise UserError(
            f"{path}: vocab must have idx_to_token, a list of words, and token_to_idx, their ids"
        )
    for token in (START, END, PADDING):
        if token not in ids:
            raise UserError(f"{path}: vocab has no {token}; it needs {START}, {END} and {PADDING}")
    return words


def _split(content: Mapping[str, Any], split: str, words: list[str], path: Path) -> Split:
    images, ids = (content[f"{split}_{kind}"] for kind in ("images", "captions"))
    is_uint8 = isinstance(images, Tensor) and images.dtype == torch.uint8 and images.ndim == 4
    if not is_uint8 or images.size(1) != 3 or not images[:1].numel():
        raise UserError(
            f"{path}: {split}_images must be uint8 (N, 3, H, W); found {_described(images)}"
        )
    if not isinstance(ids, Tensor) or ids.dtype not in INTEGERS or ids.ndim != 2:
        raise UserError(
            f"{path}: {split}_captions must be integers (N, L); found {_described(ids)}"
        )
    if len(images) != len(ids):
        raise UserError(f"{path}: {split} has {len(images)} images and {len(ids)} captions")
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(words):
        raise UserError(f"{path}: {split}_captions has ids beyond the {len(words)} words of vocab")
    return Split(images, [" ".join(_words_of(row, words)) for row in ids.tolist()])


def _words_of(ids: list[int], words: list[str]) -> Iterator[str]:
    for word in (words[number] for number in ids):
        if word == END:
            return
        if word not in (START, PADDING):
            yield word.lower() if word == UNKNOWN else word


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__
