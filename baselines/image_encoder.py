"""The image encoder of the classic captioners: a network's feature map as annotation vectors."""

from collections.abc import Sequence
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.feature_cache import FeatureCache
from baselines.timm_network import TimmNetwork
from baselines.torchvision_network import IMAGENET_MEAN, IMAGENET_STD, torchvision_network
from baselines.weight_files import reason

TIMM = "timm/"


class ImageEncoder(nn.Module):
    """Images (B, 3, S, S) -> annotations (B, P, D), P positions in row-major order.

    - name: one of `baselines.torchvision_network.encoder_names`, or "timm/NAME".
    - weights: "none" (random), "default" (the library's default weights, downloaded), "package"
      (see `baselines.weight_files`), or a file with a state dict of the network.
    - dim: D, through a 1x1 convolution. By default the network's number of channels.
    - grid: makes P = grid * grid, by average pooling. A smaller map is interpolated bilinearly.
    - norm: whether a BatchNorm of the annotations comes last.
    - finetune: if false, the network is frozen, including its batch statistics.
    - mean, std: the normalisation of the given images. The encoder converts images to the
      normalisation that its weights expect.
    - image_size: S, to check that the network accepts it.
    - features: the folder of a `baselines.feature_cache.FeatureCache`, for a frozen network.
      Training writes and reads it, evaluation only reads it.

    Raises ValueError for an unknown name, for weights that cannot be read or do not fit, and for an
    image size that the network does not accept.
    """

    def __init__(
        self,
        name: str = "regnet_x_400mf",
        weights: str = "none",
        dim: Optional[int] = None,
        grid: Optional[int] = None,
        norm: bool = False,
        finetune: bool = True,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        image_size: int = 64,
        features: Optional[str] = None,
    ):
        super().__init__()
        if name.startswith(TIMM):
            self.network = TimmNetwork(name[len(TIMM) :], weights, image_size)
            expected_mean, expected_std = torch.zeros(3), torch.ones(3)
        else:
            self.network = torchvision_network(name, weights)
            expected_mean, expected_std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
        self.finetune = finetune
        self.network.requires_grad_(finetune)
        width, *map_size = self._map_shape(image_size, name)
        self.one_position = map_size == [1, 1]
        self.dim = dim or width
        self.projection = nn.Conv2d(width, dim, 1) if dim else nn.Identity()
        self.grid = grid
        self.norm = nn.BatchNorm1d(self.dim) if norm else nn.Identity()
        scale = torch.tensor(std) / expected_std
        shift = (torch.tensor(mean) - expected_mean) / expected_std
        self.register_buffer("scale", scale.view(3, 1, 1), persistent=False)
        self.register_buffer("shift", shift.view(3, 1, 1), persistent=False)
        self.cache = FeatureCache(features, self.network, name) if features else None
        self.train()

    def train(self, mode: bool = True) -> "ImageEncoder":
        super().train(mode)
        self.network.train(mode and self.finetune)
        return self

    def forward(self, image: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
            features = self._map(image * self.scale + self.shift)  # (B, C, h, w)
        features = self.projection(features)
        if self.grid is not None and min(features.shape[2:]) < self.grid:
            size = (self.grid, self.grid)
            features = F.interpolate(features, size, mode="bilinear", align_corners=False)
        elif self.grid is not None:
            features = F.adaptive_avg_pool2d(features, self.grid)
        return self.norm(features.flatten(2)).transpose(1, 2)

    def _map(self, image: Tensor) -> Tensor:
        # Evaluation does not write to the cache: bulk captioning sees each image only once.
        return self.network(image) if self.cache is None else self.cache(image, keep=self.training)

    @property
    def min_batch_size(self) -> int:
        """2 if a single image would give a BatchNorm one value per channel, otherwise 1."""
        normalised = any(isinstance(m, nn.BatchNorm2d) for m in self.network.modules())
        in_network = self.finetune and normalised and self.one_position
        one_annotation = self.grid == 1 or (self.grid is None and self.one_position)
        at_end = isinstance(self.norm, nn.BatchNorm1d) and one_annotation
        return 2 if in_network or at_end else 1

    def _map_shape(self, image_size: int, name: str) -> Sequence[int]:
        """Channels, height and width of the network's feature map.

        Also freezes parameters without influence on the map, such as the head's: DDP would wait for
        their gradients.
        """
        self.network.eval()
        try:
            with torch.enable_grad():
                found = self.network(torch.zeros(1, 3, image_size, image_size))
        except (RuntimeError, AssertionError) as error:
            fault = "too small" if isinstance(error, RuntimeError) else "not supported"
            raise ValueError(
                f"image_size is {image_size}, {fault} for {name}: {reason(error)}"
            ) from error
        trained = [p for p in self.network.parameters() if p.requires_grad]
        if trained:
            with torch.enable_grad():
                gradients = torch.autograd.grad(found.sum(), trained, allow_unused=True)
            for parameter, gradient in zip(trained, gradients):
                parameter.requires_grad_(gradient is not None)
        return found.shape[1:]
