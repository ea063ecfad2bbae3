"""A cache of feature maps on disk: a frozen network computes each image only once."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

logger = logging.getLogger(__name__)


class FeatureCache:
    """Feature maps of a frozen network, one file each in `folder`.

    The key is a hash of the image's values; each network, by name and weights, has its own
    subfolder. Maps are computed image by image in float32, so that they do not depend on the
    batch. An unreadable file counts as missing; if the folder is not writable, one warning is
    logged.
    """

    def __init__(self, folder: str, network: nn.Module, name: str):
        self.folder, self.network, self.name = Path(folder), network, name
        self.can_write = True
        self.forget()
        # A checkpoint is loaded after the captioner is built.
        network.register_load_state_dict_post_hook(lambda *_: self.forget())

    def forget(self) -> None:
        """Hash the network's weights again before the next image."""
        self._of_network: Optional[Path] = None

    @torch.compiler.disable
    def __call__(self, image: Tensor, keep: bool) -> Tensor:
        """Maps (B, C, h, w) of images (B, 3, S, S). keep: write missing maps to disk."""
        with torch.autocast(image.device.type, enabled=False):
            return torch.stack([self._of(one, keep) for one in image.float()])

    def _of(self, image: Tensor, keep: bool) -> Tensor:
        path = self._place() / f"{_digest([image])}.safetensors"
        with contextlib.suppress(OSError, SafetensorError, KeyError):
            return load_file(path, device=str(image.device))["map"]
        features = self.network(image.unsqueeze(0))[0]
        if keep and self.can_write:
            self._write(features, path)
        return features

    def _place(self) -> Path:
        if self._of_network is None:
            values = _digest(self.network.state_dict().values())
            self._of_network = self.folder / f"{self.name.replace('/', '_')}-{values}"
        return self._of_network

    def _write(self, features: Tensor, path: Path) -> None:
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"map": features.cpu().contiguous()}, temporary)
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:
            self.can_write = False
            logger.warning("encoder_features: cannot write %s (%s): not kept", path, error)
            with contextlib.suppress(OSError):
                temporary.unlink()


def _digest(values: Iterable[Tensor]) -> str:
    """32 hexadecimal characters of the tensors' SHA-256."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.detach().cpu().contiguous().numpy())
    return digest.hexdigest()[:32]
