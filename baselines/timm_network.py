"""Any of timm's networks, without its head."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from baselines.packaged_weights import MEAN, STD, packaged_weights
from baselines.weight_files import OTHERS, errors_naming, read_weights, reason


class TimmNetwork(nn.Module):
    """Images (B, 3, S, S), values from 0 to 1, to a map (B, C, h, w): timm's `forward_features`.

    name: one that timm knows; of a vision transformer the places are its patches, its other tokens
    are left out. weights: "package", those of `baselines.packaged_weights`, or as
    `baselines.image_encoder` has them. What the weights expect images to be normalised with goes
    where the weights go: it is in the state dict. Raises ValueError for an unknown name, for one
    that cannot be made for images of that size, for one that makes no map of them, and for weights
    that cannot be had or do not fit.
    """

    def __init__(self, name: str, weights: str, image_size: int):
        super().__init__()
        self.name = name
        self.body = _load(name, weights, image_size)
        self.body.reset_classifier(0)
        if weights == "package":
            mean, std = MEAN, STD
        else:
            from timm.data import resolve_model_data_config

            expected = resolve_model_data_config(self.body)
            mean, std = expected["mean"], expected["std"]
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        features = self.body.forward_features((image - self.mean) / self.std)
        shape = features.shape if isinstance(features, Tensor) else ()
        if len(shape) == 4:
            channels_last = shape[3] == self.body.num_features != shape[1]
            return features.permute(0, 3, 1, 2) if channels_last else features
        if len(shape) == 3:  # (B, n, C), the patches last
            places = features[:, getattr(self.body, "num_prefix_tokens", 0) :]
            side = math.isqrt(places.size(1))
            if side * side == places.size(1):
                return places.transpose(1, 2).unflatten(2, (side, side))
        raise ValueError(f"encoder: timm's {self.name} makes no map of an image; choose another")


def _load(name: str, weights: str, image_size: int) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise ValueError(f"encoder: timm has no network {name!r}; see timm.list_models()")
    # Most networks take images of any size; these are made for one.
    fixed = getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False)
    size = {"img_size": image_size} if fixed else {}
    if weights == "default":
        try:
            return timm.create_model(name, pretrained=True, **size)
        except Exception as error:  # of the hub, of the file, of a size that does not suit it
            raise ValueError(
                f"encoder_weights: cannot fetch timm's weights of {name} ({reason(error)}); "
                f"connect to the network, or give {OTHERS}"
            ) from error
    if weights == "none":
        try:
            return timm.create_model(name, **size)
        except Exception as error:
            raise ValueError(
                f"encoder: timm cannot make {name} for image_size {image_size}: {reason(error)}"
            ) from error
    if weights == "package":
        return _with_weights(name, packaged_weights(name), size)
    path = Path(weights)
    with errors_naming(path, name):
        return _with_weights(name, read_weights(path), size)


def _with_weights(name: str, state: Mapping[str, Tensor], size: Mapping[str, int]) -> nn.Module:
    """The network with a state dict, which timm fits to the size as it does its own weights."""
    import timm

    given = {"state_dict": dict(state), "custom_load": False}
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=given, **size)
