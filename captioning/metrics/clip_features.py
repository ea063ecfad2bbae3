"""CLIP features of captions and images, computed by all processes and cached in files."""

import json
import os
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Optional

import numpy as np
import torch

from captioning.files.cache import cache_folder, cache_key
from captioning.files.tables import is_row
from captioning.files.writing import atomic_write
from captioning.metrics.clip import PREPROCESSING, Clip, ClipOptions, load_clip, read_clip
from captioning.metrics.evaluator import CaptionSet, Evaluator
from captioning.metrics.over_ranks import (
    batches_by_length,
    batches_in_order,
    map_over_ranks,
    on_all_ranks,
)
from captioning.runtime.distributed import broadcast_from_main, is_main
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# What numpy and zipfile raise for a file that is not a valid archive of the arrays.
NO_ARRAYS = (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile)

LARGEST = 4 << 30  # bytes of an unpacked array: the features of two million images


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Return the arrays with these names. Arrays of Python objects are refused: they are pickles.

    Raises one of NO_ARRAYS, for example FileNotFoundError.
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > LARGEST:
                raise ValueError(f"{member.filename} has more than {LARGEST} bytes unpacked")
    with np.load(path, allow_pickle=False) as content:
        arrays = [content[name] for name in names]
    for name, array in zip(names, arrays):
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is not an array")
    return arrays


class CachedFeatures:
    """The cache file for a model's features of a list of image files.

    Its name depends on the model's weights, the preprocessing and its libraries, and the path, size
    and modification time of each image. Raises UserError for a missing image.
    """

    def __init__(self, folder: Optional[Path], clip: Clip, paths: Sequence[Path]):
        self.files = [str(path) for path in paths]
        self.shape = (len(paths), clip.width)
        libraries = [version(name) for name in ("torchvision", "pillow")]
        images = [_state(path) for path in paths]
        made_of = [clip.weights, clip.image_size, PREPROCESSING, libraries, images]
        key = cache_key(json.dumps(made_of), 32)
        self.path = cache_folder(folder) / f"clip_features_{key}.npz"

    def read(self) -> Optional[np.ndarray]:
        """Return the features (P, D); None if there is no file or the file is damaged."""
        try:
            (features,) = read_arrays(self.path, "features")
            known = features.shape == self.shape and features.dtype == np.float32
            if known and np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-4):
                return features
            problem = "no unit vectors of these images"
        except FileNotFoundError:
            return None
        except NO_ARRAYS as error:
            problem = type(error).__name__
        log_line(f"{self.path} is damaged ({problem}): computing it again")
        return None

    def write(self, features: np.ndarray) -> None:
        """Write the features. A folder that is not writable is logged; it is not an error."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path) as file:
                np.savez(file, features=features, files=np.array(self.files, dtype=str))
        except OSError as error:
            log_line(f"image features are not cached: {self.path.parent}: {error.strerror}")


def _state(path: Path) -> list:
    try:
        found = os.stat(path.parent if is_row(path) else path)
    except OSError as error:
        raise UserError(f"{path}: no such image: {error.strerror}") from None
    return [os.path.abspath(path), found.st_size, found.st_mtime_ns]


class ClipEvaluator(Evaluator):
    """An evaluator whose model is CLIP."""

    Options = ClipOptions
    needs_images = True
    on_every_rank = True

    def check(self) -> None:
        read_clip(self.options.clip_model)

    def features(self, captions: CaptionSet) -> "ClipFeatures":
        """The features, computed with one CLIP for all evaluators of these captions."""
        if ClipFeatures not in captions.shared:
            captions.shared[ClipFeatures] = ClipFeatures(self)
        return captions.shared[ClipFeatures]


class ClipFeatures:
    """Computes features with one CLIP. All processes have to make the same calls."""

    def __init__(self, evaluator: ClipEvaluator):
        settings = evaluator.settings
        self.batch_size, self.cache = settings.batch_size, settings.cache_dir
        self.clip = on_all_ranks(lambda: load_clip(evaluator.options.clip_model, settings.device))

    def of_texts(
        self, texts: Sequence[str], description: str
    ) -> tuple[Optional[np.ndarray], list[bool]]:
        """Return unit vectors (N, D) on rank 0, and whether each text was too long.

        Equal texts are encoded once: most captions are their only sentence.
        """
        distinct = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        rows = [distinct[text] for text in texts]
        ids, long = self.clip.encode(list(distinct))

        def compute(batch):
            return self.clip.text_features(batch).cpu().numpy()

        batches = batches_by_length([len(text) for text in ids], self.batch_size)
        vectors = map_over_ranks(batches, ids.__getitem__, compute, description, "caption")
        return None if vectors is None else vectors[rows], [long[row] for row in rows]

    def of_images(self, paths: Sequence[Path], description: str) -> Optional[np.ndarray]:
        """Return unit vectors (P, D) of image files on rank 0, from the cache if possible.

        Raises UserError for a file that cannot be read.
        """

        def look_up():
            cached = CachedFeatures(self.cache, self.clip, paths) if is_main() else None
            return cached, cached and cached.read()

        cached, known = on_all_ranks(look_up)
        if broadcast_from_main(known is not None):
            return known

        def compute(images):
            return self.clip.image_features(torch.stack(images)).cpu().numpy()

        batches = batches_in_order(len(paths), self.batch_size)
        features = map_over_ranks(
            batches, lambda index: self.clip.read_image(paths[index]), compute, description
        )
        if cached:
            cached.write(features)
        return features
