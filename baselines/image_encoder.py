"""Any of torchvision's convolutional classifiers, without its head, as an image encoder."""

import os
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Optional
from unittest.mock import patch

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

FAMILIES = (
    *("resnet", "resnext", "wide_resnet", "squeezenet", "densenet", "shufflenet"),
    *("mobilenet", "mnasnet", "regnet"),
)
# What torchvision's weights were trained with.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SAFE_LOADING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch's own switch


def encoder_names() -> list[str]:
    """The networks of torchvision that can be an encoder."""
    names = torchvision.models.list_models(module=torchvision.models)
    return [name for name in names if name.startswith(FAMILIES)]


class ImageEncoder(nn.Module):
    """Images (B, 3, S, S) to annotations (B, P, D): a vector for each of P places, row by row.

    name: of `encoder_names`. weights: "none", made up; "default", torchvision's best, downloaded;
    or a file of a state dict of that network. dim: D by a 1x1 convolution, else what the network
    has. grid: P = grid * grid by average pooling, or by bilinear interpolation where the network
    gives fewer. norm: each channel of the annotations is normalised over images and places at the
    end, by a BatchNorm. finetune: without it the network stays as it is, batch statistics included.
    mean, std: what the images were normalised with, changed here to what torchvision's weights
    expect. image_size: S, to see that the network can take it. Raises ValueError for an unknown
    name, for weights that cannot be had or do not fit, and for images that are too small.
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
    ):
        super().__init__()
        if name not in encoder_names():
            raise ValueError(
                f"encoder: {name!r} is unknown; choose one of torchvision's "
                f"{', '.join(FAMILIES)}, such as regnet_x_400mf or resnet50"
            )
        self.network = _without_head(_load(name, weights))
        self.finetune = finetune
        self.network.requires_grad_(finetune)
        width, *map_size = self._map_of(image_size, name)
        self.one_place = map_size == [1, 1]
        self.dim = dim or width
        self.projection = nn.Conv2d(width, dim, 1) if dim else nn.Identity()
        self.grid = grid
        self.norm = nn.BatchNorm1d(self.dim) if norm else nn.Identity()
        scale = torch.tensor(std) / torch.tensor(IMAGENET_STD)
        shift = (torch.tensor(mean) - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
        self.register_buffer("scale", scale.view(3, 1, 1), persistent=False)
        self.register_buffer("shift", shift.view(3, 1, 1), persistent=False)
        self.train()

    def train(self, mode: bool = True) -> "ImageEncoder":
        super().train(mode)
        self.network.train(mode and self.finetune)
        return self

    def forward(self, image: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
            features = self.network(image * self.scale + self.shift)  # (B, C, h, w)
        features = self.projection(features)
        if self.grid is not None and min(features.shape[2:]) < self.grid:
            size = (self.grid, self.grid)
            features = F.interpolate(features, size, mode="bilinear", align_corners=False)
        elif self.grid is not None:
            features = F.adaptive_avg_pool2d(features, self.grid)
        return self.norm(features.flatten(2)).transpose(1, 2)

    @property
    def smallest_batch(self) -> int:
        """How many images training takes at least: batch statistics are of two values or more."""
        normalised = any(isinstance(m, nn.BatchNorm2d) for m in self.network.modules())
        in_network = self.finetune and normalised and self.one_place
        one_annotation = self.grid == 1 or (self.grid is None and self.one_place)
        at_end = isinstance(self.norm, nn.BatchNorm1d) and one_annotation
        return 2 if in_network or at_end else 1

    def _map_of(self, image_size: int, name: str) -> Sequence[int]:
        """Channels, height and width of what the network makes of an image."""
        self.network.eval()
        try:
            with torch.no_grad():
                return self.network(torch.zeros(1, 3, image_size, image_size)).shape[1:]
        except RuntimeError as error:
            raise ValueError(
                f"image_size is {image_size}, too small for {name}: {_reason(error)}"
            ) from error


def _load(name: str, weights: str) -> nn.Module:
    if weights == "default":
        try:
            # torchvision reads what it fetches as torch once did, which runs what is in the file.
            with patch.dict(os.environ, {SAFE_LOADING: "1"}):
                return torchvision.models.get_model(name, weights="DEFAULT")
        except Exception as error:  # of the network, of the hash, of what unpickling stumbles over
            raise ValueError(
                f"encoder_weights: cannot fetch torchvision's weights of {name} "
                f"({_reason(error)}); connect to the network, or give none or a file"
            ) from error
    network = torchvision.models.get_model(name, weights=None)
    if weights == "none":
        return network
    path = Path(weights)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that are not torch's, then refused
            state = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
        if not all(value.isfinite().all() for value in state.values()):
            raise ValueError("it holds values that are not finite")
    except Exception as error:  # unpicklers raise whatever a broken file makes them stumble over
        raise ValueError(
            f"encoder_weights: {path} cannot be read as weights of {name}: {_reason(error)}"
        ) from error
    return network


def _reason(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _without_head(network: nn.Module) -> nn.Module:
    """The part of a classifier that ends in a map (B, C, h, w), under the names that it had."""
    if hasattr(network, "features"):  # squeezenet, densenet, mobilenet
        dense = isinstance(network, torchvision.models.DenseNet)
        # DenseNet's last activation is in its forward.
        return nn.Sequential(network.features, nn.ReLU()) if dense else network.features
    if hasattr(network, "layers"):  # mnasnet
        return network.layers
    children = OrderedDict(network.named_children())
    for head in ("avgpool", "fc"):  # the pooling of shufflenet is in its forward
        children.pop(head, None)
    return nn.Sequential(children)
