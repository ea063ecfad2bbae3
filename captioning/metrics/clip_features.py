"""Computes CLIP features of captions and image files, and keeps those of images in files."""

import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Optional

import numpy as np
import torch

from captioning.files.cache import cache_folder, cache_key
from captioning.files.stores import stamp
from captioning.files.tables import is_row
from captioning.files.writing import atomic_write
from captioning.metrics.base import CaptionSet, Evaluator, option
from captioning.metrics.batches import in_batches
from captioning.metrics.clip import CLIP_MODEL, PREPROCESSING, Clip, check_clip
from captioning.runtime.progress import log_line


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Return the arrays of these names in an .npz file. Raises errors of many types.

    Arrays of Python objects are pickles, so that they are not read: they raise ValueError.
    """
    with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as content:
        return [np.asarray(content[name]) for name in names]


class ClipEvaluator(Evaluator):
    """The base class of evaluators that use CLIP features."""

    options = {
        "clip_model": option(
            str,
            CLIP_MODEL,
            "a hub id, a folder, or a file of weights in OpenAI's layout",
            min_length=1,
        )
    }
    needs_images = True

    def check_requirements(self) -> None:
        check_clip(self.config.clip_model)

    def clip(self, captions: CaptionSet) -> Clip:
        """Return the `Clip` that all evaluators of these captions share."""
        if Clip not in captions.shared:
            captions.shared[Clip] = Clip(self.config.clip_model, self.settings.device)
        return captions.shared[Clip]

    def text_features(
        self, clip: Clip, texts: Iterable[str], prefix: str = ""
    ) -> dict[str, np.ndarray]:
        """Return {text: unit vector (D,)}. prefix: put before each text."""

        def compute(batch):
            return clip.text_features([prefix + text for text in batch]).cpu().numpy()

        texts = sorted(dict.fromkeys(texts), key=len)  # of similar length: little padding
        size = self.settings.batch_size
        return dict(zip(texts, in_batches(texts, compute, size, "CLIP, captions")))

    def image_features(self, clip: Clip, paths: Sequence[Path], description: str) -> np.ndarray:
        """Return unit vectors (P, D) of image files, from the cache if possible.

        The name of the cache file is a hash of the image encoder's weights, the preprocessing, the
        libraries' versions, and the path, size and modification time of each image. Raises
        UserError for a file that cannot be read.
        """
        libraries = [version(name) for name in ("torchvision", "pillow")]
        # A row of a table has the stamp of its table.
        tables = [path.parent if is_row(path) else path for path in paths]
        images = [[os.path.abspath(p), *stamp(str(table))] for p, table in zip(paths, tables)]
        inputs = [clip.weights, clip.image_size, PREPROCESSING, libraries, images]
        name = f"clip_features_{cache_key(json.dumps(inputs), 32)}.npz"
        file = cache_folder(self.settings.cache_dir) / name
        features = read_cached(file)
        if features is None:
            features = in_batches(
                paths,
                lambda batch: clip.image_features(torch.stack(batch)).cpu().numpy(),
                self.settings.batch_size,
                description,
                read=clip.read_image,
            )
            _write_cached(file, features, paths)
        return features


def read_cached(file: Path) -> Optional[np.ndarray]:
    """Return the features of a cache file; None if there is no file or it is damaged."""
    try:
        return read_arrays(file, "features")[0]
    except FileNotFoundError:
        return None
    except Exception as error:  # numpy and zipfile raise many types
        log_line(f"{file} is damaged ({type(error).__name__}): computing it again")
        return None


def _write_cached(file: Path, features: np.ndarray, paths: Sequence[Path]) -> None:
    """Write a cache file. If the folder is not writable, only log this."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as content:
            np.savez(content, features=features, files=np.array(list(map(str, paths))))
    except OSError as error:
        log_line(f"image features are not cached: {file.parent}: {error.strerror}")
