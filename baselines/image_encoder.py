"""Encodes images for the classic captioners: a network's feature map becomes annotation vectors."""

from textwrap import shorten
from typing import Any

import torch
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

    Raises ValueError for a network or weights that `TimmNetwork` refuses, and for an image size
    that the network does not accept.
    """

    def __init__(self, config: Any, weights: str = "none", normalisation: Normalisation = NEUTRAL):
        super().__init__()
        size, name = config.image_size, config.encoder
        self.network = TimmNetwork(name, weights, size, normalisation).eval()
        try:
            feature_map = self.network(torch.zeros(1, 3, size, size))
        except Exception as error:  # of many types
            raise ValueError(
                f"image_size is {size}, which encoder {name} does not support: "
                f"{shorten(str(error) or repr(error), 200)}"
            ) from error
        # Parameters that do not influence the map, such as those of the head, are frozen: DDP would
        # wait for their gradients.
        self.finetune = config.encoder_lr > 0
        parameters = list(self.network.parameters())
        gradients = torch.autograd.grad(feature_map.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients):
            parameter.requires_grad_(self.finetune and gradient is not None)
        channels, dim = feature_map.size(1), config.encoder_dim
        self.dim, self.grid = dim or channels, config.encoder_size
        self.projection = nn.Conv2d(channels, dim, 1) if dim else nn.Identity()
        self.norm = nn.BatchNorm1d(self.dim) if config.encoder_norm else nn.Identity()
        self.train()

    def train(self, mode: bool = True) -> "ImageEncoder":
        super().train(mode)
        self.network.train(mode and self.finetune)
        return self

    def forward(self, image: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
            features = self.network(image)
        features = self.projection(features)
        if self.grid and min(features.shape[2:]) < self.grid:
            features = F.interpolate(features, (self.grid, self.grid), mode="bilinear")
        elif self.grid:
            features = F.adaptive_avg_pool2d(features, self.grid)
        return self.norm(features.flatten(2)).transpose(1, 2)
