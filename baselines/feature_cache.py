"""Caches feature maps of a frozen network on disk, so that each image is encoded once."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

logger = logging.getLogger(__name__)


class FeatureCache:
    """Stores the feature map of each image in a separate file in `folder`.

    The file is FOLDER/NAME-HASH/HASH.safetensors, with the name of the network, a hash of its
    weights and a hash of the image. Each feature map is computed for a single image and in float32,
    so that it does not depend on the batch. A file that cannot be read is a cache miss. After the
    first failed write, the cache logs a warning and writes no more files.
    """

    def __init__(self, folder: str, network: nn.Module, name: str):
        self.folder, self.network, self.name = Path(folder), network, name
        self.can_write = True
        self._forget_weights()
        network.register_load_state_dict_post_hook(self._forget_weights)

    def _forget_weights(self, *_: Any) -> None:
        """Discard the hash of the weights, so that the next image computes it again.

        This is a hook that runs after load_state_dict, which changes the weights.
        """
        self._network_folder = None

    @torch.compiler.disable
    def __call__(self, images: Tensor, write: bool) -> Tensor:
        """Return the feature maps (B, C, h, w) of images (B, 3, S, S), from the cache if possible.

        write: whether to write newly computed feature maps to the cache.
        """
        with torch.autocast(images.device.type, enabled=False):
            return torch.stack([self._load_or_compute(image, write) for image in images.float()])

    def _load_or_compute(self, image: Tensor, write: bool) -> Tensor:
        path = self._folder() / f"{_digest([image])}.safetensors"
        with contextlib.suppress(OSError, SafetensorError, KeyError):
            return load_file(path, device=str(image.device))["map"]
        features = self.network(image.unsqueeze(0))[0]
        if write and self.can_write:
            self._write(features, path)
        return features

    def _folder(self) -> Path:
        """Return the subfolder for the network with its current weights."""
        if self._network_folder is None:
            weights_hash = _digest(self.network.state_dict().values())
            self._network_folder = self.folder / f"{self.name.replace('/', '_')}-{weights_hash}"
        return self._network_folder

    def _write(self, features: Tensor, path: Path) -> None:
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"map": features.cpu().contiguous()}, temporary)
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:
            self.can_write = False
            logger.warning(
                "encoder_features: cannot write %s (%s): features are not cached", path, error
            )
            with contextlib.suppress(OSError):
                temporary.unlink()


def _digest(tensors: Iterable[Tensor]) -> str:
    """Return the first 32 hexadecimal digits of a hash of the tensors' values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy())
    return digest.hexdigest()[:32]
