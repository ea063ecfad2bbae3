"""Computes CLIP features of captions and images on all processes, and caches image features."""

import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import compress
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
    call_on_all_ranks,
    map_over_ranks,
)
from captioning.runtime.distributed import broadcast_from_main, is_main
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# The errors that `read_arrays` raises if a file is missing, is damaged or lacks an array.
READ_ERRORS = (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile)


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Return the arrays of these names in an .npz file.

    Raises one of READ_ERRORS, for example FileNotFoundError. Arrays of Python objects are pickles,
    so that they are not read: they raise ValueError.
    """
    with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as content:
        return [np.asarray(content[name]) for name in names]


class CachedFeatures:
    """The cache file with one model's features of a list of image files.

    The file's name is a hash of the image encoder's weights, the preprocessing, the libraries'
    versions, and the path, size and modification time of each image. folder: None for the user's
    cache folder. Raises UserError for a missing image.
    """

    def __init__(self, folder: Optional[Path], clip: Clip, paths: Sequence[Path]):
        self.files = [str(path) for path in paths]
        self.shape = (len(paths), clip.width)
        libraries = [version(name) for name in ("torchvision", "pillow")]
        images = [_file_state(path) for path in paths]
        inputs = [clip.weights, clip.image_size, PREPROCESSING, libraries, images]
        key = cache_key(json.dumps(inputs), 32)
        self.path = cache_folder(folder) / f"clip_features_{key}.npz"

    def read(self) -> Optional[np.ndarray]:
        """Return the features (P, D); None if there is no file or the file is damaged."""
        try:
            (features,) = read_arrays(self.path, "features")
            fits = features.shape == self.shape and features.dtype == np.float32
            if fits and np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-4):
                return features
            problem = "no unit vectors of these images"
        except FileNotFoundError:
            return None
        except READ_ERRORS as error:
            problem = type(error).__name__
        log_line(f"{self.path} is damaged ({problem}): computing it again")
        return None

    def write(self, features: np.ndarray) -> None:
        """Write the features. If the folder is not writable, only log this."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path) as file:
                np.savez(file, features=features, files=np.array(self.files, dtype=str))
        except OSError as error:
            log_line(f"image features are not cached: {self.path.parent}: {error.strerror}")


def _file_state(path: Path) -> list:
    """Return an image's path, size and modification time; for a row, the last two of its table."""
    try:
        found = os.stat(path.parent if is_row(path) else path)
    except OSError as error:
        raise UserError(f"{path}: no such image: {error.strerror}") from None
    return [os.path.abspath(path), found.st_size, found.st_mtime_ns]


class ClipEvaluator(Evaluator):
    """The base class of evaluators that use CLIP features."""

    Options = ClipOptions
    needs_images = True
    on_every_rank = True

    def check_requirements(self) -> None:
        read_clip(self.options.clip_model)

    def features(self, captions: CaptionSet) -> "ClipFeatures":
        """Return the `ClipFeatures` that all evaluators of these captions share."""
        if ClipFeatures not in captions.shared:
            captions.shared[ClipFeatures] = ClipFeatures(self)
        return captions.shared[ClipFeatures]


class ClipFeatures:
    """Computes features with one CLIP, on all processes, which have to make the same calls."""

    def __init__(self, evaluator: ClipEvaluator):
        settings = evaluator.settings
        self.batch_size, self.cache_dir = settings.batch_size, settings.cache_dir
        self.clip = call_on_all_ranks(
            lambda: load_clip(evaluator.options.clip_model, settings.device)
        )

    def of_texts(
        self, texts: Iterable[str], description: str, prefix: str = ""
    ) -> tuple[Optional[dict[str, np.ndarray]], set[str]]:
        """Return {text: unit vector (D,)}, and the texts that were truncated.

        prefix: put before each text. On ranks other than 0, None is returned instead of the
        vectors.
        """
        texts = list(dict.fromkeys(texts))
        ids, truncated = self.clip.encode([prefix + text for text in texts])

        def compute(batch):
            return self.clip.text_features(batch).cpu().numpy()

        batches = batches_by_length([len(text) for text in ids], self.batch_size)
        vectors = map_over_ranks(batches, ids.__getitem__, compute, description, "caption")
        by_text = None if vectors is None else dict(zip(texts, vectors))
        return by_text, set(compress(texts, truncated))

    def of_images(self, paths: Sequence[Path], description: str) -> Optional[np.ndarray]:
        """Return unit vectors (P, D) of image files, from the cache if possible.

        Returns None on ranks other than 0. Raises UserError for a file that cannot be read.
        """

        def look_up():
            if not is_main():
                return None, None
            file = CachedFeatures(self.cache_dir, self.clip, paths)
            return file, file.read()

        cache_file, known = call_on_all_ranks(look_up)
        if broadcast_from_main(known is not None):
            return known

        def compute(images):
            return self.clip.image_features(torch.stack(images)).cpu().numpy()

        batches = batches_by_length([1] * len(paths), self.batch_size)
        features = map_over_ranks(
            batches, lambda index: self.clip.read_image(paths[index]), compute, description
        )
        if cache_file:
            cache_file.write(features)
        return features
