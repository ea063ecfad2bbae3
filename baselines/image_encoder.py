"""Encodes images for the classic captioners: a network's feature map becomes annotation vectors."""

from collections.abc import Sequence
from textwrap import shorten
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.feature_cache import FeatureCache
from baselines.timm_network import TimmNetwork
from baselines.torchvision_network import IMAGENET_MEAN, IMAGENET_STD, torchvision_network

TIMM = "timm/"  # the prefix of the names of timm's networks


class ImageEncoder(nn.Module):
    """Encodes images (B, 3, S, S) -> annotations (B, P, D), with P positions in row-major order.

    - name: one of `baselines.torchvision_network.encoder_names`, or "timm/NAME".
    - weights: "none" (random), "default" (the library's default weights, downloaded), "package"
      (see `baselines.weight_files`), or a file with a state dict of the network.
    - dim: D. A 1x1 convolution projects the feature map to D channels. None: no projection, so that
      D is the network's number of channels.
    - grid: pool the feature map to grid x grid positions by averaging. A map that is smaller than
      the grid is interpolated bilinearly instead. None: keep all positions of the feature map.
    - norm: whether a BatchNorm is applied to the annotations.
    - finetune: if false, the network is frozen, including its BatchNorm statistics.
    - mean, std: the normalisation of the input images. The encoder converts the images to the
      normalisation with which its weights were trained.
    - image_size: S. The constructor checks that the network accepts it.
    - feature_folder: the folder of a `FeatureCache`, only for a frozen network. Training reads and
      writes the cache, and evaluation only reads it. None: no cache.

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
        feature_folder: Optional[str] = None,
    ):
        super().__init__()
        if name.startswith(TIMM):
            self.network = TimmNetwork(name.removeprefix(TIMM), weights, image_size)
            network_mean, network_std = torch.zeros(3), torch.ones(3)
        else:
            self.network = torchvision_network(name, weights)
            network_mean, network_std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
        self.finetune = finetune
        self.network.requires_grad_(finetune)
        num_channels, *map_size = self._probe_map_shape(image_size, name)
        self.has_one_position = map_size == [1, 1]
        self.dim = dim or num_channels
        self.projection = nn.Conv2d(num_channels, dim, 1) if dim else nn.Identity()
        self.grid = grid
        self.norm = nn.BatchNorm1d(self.dim) if norm else nn.Identity()
        scale = torch.tensor(std) / network_std
        shift = (torch.tensor(mean) - network_mean) / network_std
        self.register_buffer("scale", scale.view(3, 1, 1), persistent=False)
        self.register_buffer("shift", shift.view(3, 1, 1), persistent=False)
        self.cache = FeatureCache(feature_folder, self.network, name) if feature_folder else None
        self.train()

    def train(self, mode: bool = True) -> "ImageEncoder":
        super().train(mode)
        self.network.train(mode and self.finetune)
        return self

    def forward(self, image: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
            x = image * self.scale + self.shift
            # Evaluation does not write to the cache: bulk captioning sees each image only once.
            features = self.cache(x, write=self.training) if self.cache else self.network(x)
        features = self.projection(features)
        if self.grid is not None and min(features.shape[2:]) < self.grid:
            size = (self.grid, self.grid)
            features = F.interpolate(features, size, mode="bilinear", align_corners=False)
        elif self.grid is not None:
            features = F.adaptive_avg_pool2d(features, self.grid)
        return self.norm(features.flatten(2)).transpose(1, 2)

    @property
    def min_batch_size(self) -> int:
        """The smallest batch for training: 2 if a BatchNorm gets one value per channel and image.

        A BatchNorm cannot train on a single value per channel. Otherwise the result is 1.
        """
        has_batch_norm = any(isinstance(m, nn.BatchNorm2d) for m in self.network.modules())
        network_needs_two = self.finetune and has_batch_norm and self.has_one_position
        one_annotation = self.grid == 1 or (self.grid is None and self.has_one_position)
        norm_needs_two = isinstance(self.norm, nn.BatchNorm1d) and one_annotation
        return 2 if network_needs_two or norm_needs_two else 1

    def _probe_map_shape(self, image_size: int, name: str) -> Sequence[int]:
        """Run the network on a zero image. Return channels, height and width of the feature map.

        Also freezes parameters that do not influence the map, such as those of the head, because
        DDP would wait for their gradients. Raises ValueError if the network does not accept the
        image size.
        """
        self.network.eval()
        try:
            with torch.enable_grad():
                feature_map = self.network(torch.zeros(1, 3, image_size, image_size))
        except (RuntimeError, AssertionError) as error:
            problem = "too small" if isinstance(error, RuntimeError) else "not supported"
            raise ValueError(
                f"image_size is {image_size}, {problem} for {name}: {shorten(str(error), 200)}"
            ) from error
        trainable = [p for p in self.network.parameters() if p.requires_grad]
        if trainable:
            with torch.enable_grad():
                gradients = torch.autograd.grad(feature_map.sum(), trainable, allow_unused=True)
            for parameter, gradient in zip(trainable, gradients):
                parameter.requires_grad_(gradient is not None)
        return feature_map.shape[1:]
