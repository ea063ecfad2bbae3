"""Image features kept on disk, by what they were computed from."""

import hashlib
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Optional

import numpy as np

from captioning.metrics.arrays import NO_ARRAYS, read_arrays
from captioning.metrics.clip import PREPROCESSING, Clip
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say


def default_folder() -> Path:
    """Return smile/ where this user's programs keep what can be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smile"


class CachedFeatures:
    """The place of the features of these image files, in this order, from this model.

    The name depends on the model's weights, the preprocessing with the libraries that do it, and
    each file's path, size and time of change. Raises UserError for a file that is not there.
    """

    def __init__(self, folder: Optional[Path], clip: Clip, paths: Sequence[Path]):
        self.files = [str(path) for path in paths]
        self.shape = (len(paths), clip.width)
        libraries = [version(name) for name in ("torchvision", "pillow")]
        images = [_state(path) for path in paths]
        made_of = [clip.weights, clip.image_size, PREPROCESSING, libraries, images]
        key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]
        self.path = (folder or default_folder()) / f"clip_features_{key}.npz"

    def read(self) -> Optional[np.ndarray]:
        """Return the features (P, D), or None where there are none or the file is damaged."""
        try:
            (features,) = read_arrays(self.path, "features")
            if features.shape != self.shape or features.dtype != np.float32:
                raise ValueError(f"{features.dtype} {features.shape}")
            if not np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-4):
                raise ValueError("no unit vectors")
        except FileNotFoundError:
            return None
        except NO_ARRAYS as error:
            say(f"{self.path} is damaged ({type(error).__name__}) and is made again")
            return None
        return features

    def write(self, features: np.ndarray) -> None:
        """Keep the features; a folder that cannot be written to is said, and no error."""
        staged = self.path.with_name(f".{os.getpid()}.{self.path.name}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                np.savez(staged, features=features, files=np.array(self.files, dtype=str))
                os.replace(staged, self.path)
            finally:
                staged.unlink(missing_ok=True)
        except OSError as error:
            say(f"image features are not kept: {self.path.parent}: {error.strerror}")


def _state(path):
    try:
        found = os.stat(path)
    except OSError as error:
        raise UserError(f"{path}: no such image: {error.strerror}") from None
    return [os.path.abspath(path), found.st_size, found.st_mtime_ns]
