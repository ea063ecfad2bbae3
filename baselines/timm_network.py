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

    name: a timm model; for a vision transformer the map consists of its patch tokens. weights: as
    in `baselines.image_encoder`. The normalisation that the weights expect is part of the state
    dict. Raises ValueError for an unknown name, an unsuitable image size, a network without a
    feature map, and weights that are not available or do not fit.
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
        raise ValueError(f"encoder: timm's {self.name} has no feature map; choose another")


def _load(name: str, weights: str, image_size: int) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise ValueError(f"encoder: timm has no network {name!r}; see timm.list_models()")
    # Only these networks are built for one image size.
    fixed = getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False)
    size = {"img_size": image_size} if fixed else {}
    if weights == "default":
        try:
            return timm.create_model(name, pretrained=True, **size)
        except Exception as error:  # raised by the hub, the file or the size
            raise ValueError(
                f"encoder_weights: cannot fetch timm's weights of {name} ({reason(error)}); "
                f"connect to the network, or give {OTHERS}"
            ) from error
    if weights == "none":
        try:
            return timm.create_model(name, **size)
        except Exception as error:
            raise ValueError(
                f"encoder: timm cannot build {name} for image_size {image_size}: {reason(error)}"
            ) from error
    if weights == "package":
        return _with_weights(name, packaged_weights(name), size)
    path = Path(weights)
    with errors_naming(path, name):
        return _with_weights(name, read_weights(path), size)


def _with_weights(name: str, state: Mapping[str, Tensor], size: Mapping[str, int]) -> nn.Module:
    """The network with a state dict, which timm adapts to the image size."""
    import timm

    given = {"state_dict": dict(state), "custom_load": False}
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=given, **size)
