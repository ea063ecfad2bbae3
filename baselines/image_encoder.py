"""Encodes images for the classic captioners: a network's feature map becomes annotation vectors."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from baselines.timm_network import NEUTRAL, Normalisation, TimmNetwork


class ImageEncoder(nn.Module):
    """Encodes images (B, 3, S, S) -> annotations (B, P, D), with P positions in row-major order.

    - config: a run's configuration. `encoder_dim` is D; a 1x1 convolution projects the feature map
      to D channels. None: D is the network's number of channels. `encoder_size` positions along a
      side are made by averaging, or by bilinear interpolation of a smaller map. None: all positions
      of the map. `encoder_norm`: a BatchNorm of the annotations. If `encoder_lr` is 0, the network
      is frozen, including its BatchNorm statistics.
    - weights, normalisation: see `TimmNetwork`.

    Raises ValueError for what `TimmNetwork` refuses.
    """

    def __init__(self, config: Any, weights: str = "none", normalisation: Normalisation = NEUTRAL):
        super().__init__()
        self.network = TimmNetwork(config, weights, normalisation)
        self.finetune, self.grid = config.encoder_lr > 0, config.encoder_size
        channels, dim = self.network.channels, config.encoder_dim
        self.dim = dim or channels
        self.projection = nn.Conv2d(channels, dim, 1) if dim else nn.Identity()
        self.norm = nn.BatchNorm1d(self.dim) if config.encoder_norm else nn.Identity()
        self.train()

    def train(self, mode: bool = True) -> "ImageEncoder":
        super().train(mode)
        self.network.train(mode and self.finetune)
        return self

    def forward(self, image: Tensor) -> Tensor:
        features = self.projection(self.network(image))
        if self.grid and min(features.shape[2:]) < self.grid:
            features = F.interpolate(features, (self.grid, self.grid), mode="bilinear")
        elif self.grid:
            features = F.adaptive_avg_pool2d(features, self.grid)
        return self.norm(features.flatten(2)).transpose(1, 2)
