"""Builds a network of timm without its head, for `baselines.image_encoder`."""

import math
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

import timm
import torch
from torch import Tensor, nn

Normalisation = Sequence[Sequence[float]]  # mean and std of each channel
NEUTRAL = ((0.0,) * 3, (1.0,) * 3)
TIMM = "timm/"  # the prefix of timm's own names
# The sizes of torchvision's RegNets, and their numbers in timm's names.
REGNETS = {
    **{"400mf": "004", "800mf": "008", "1_6gf": "016", "3_2gf": "032"},
    **{"8gf": "080", "16gf": "160", "32gf": "320"},
}


class TimmNetwork(nn.Module):
    """Computes a feature map (B, C, h, w), the output of timm's `forward_features`.

    For a vision transformer, the map consists of the patch tokens.

    - config: a run's configuration. `encoder` is timm/NAME, or the name of one of torchvision's
      networks that timm has: resnet, resnext, wide_resnet, densenet and regnet. timm computes the
      same features, bit by bit. If `encoder_lr` is 0, all parameters are frozen.
    - weights: "none" (random), "default" (downloaded), or a file with a state dict, of
      torchvision's network for a name of torchvision's.
    - normalisation: of the images. `forward` changes it to that of the weights.

    Raises ValueError for an unknown name, for weights that cannot be read or do not fit, and for an
    `image_size` that the network does not accept.
    """

    def __init__(self, config: Any, weights: str, normalisation: Normalisation):
        super().__init__()
        given = torch.tensor(normalisation).view(2, 3, 1, 1)
        self.register_buffer("normalisation", given, persistent=False)
        name, size = _timm_name(config.encoder), config.image_size
        try:
            self.body = _build(name, weights, size)
            self.body.reset_classifier(0)
            if config.encoder.startswith("regnet_"):  # optimizers of runs have torchvision's order
                for block in self.body.modules():
                    children = block._modules.items()
                    block._modules = dict(sorted(children, key=lambda c: c[0] != "downsample"))
            for key in ("mean", "std"):
                self.register_buffer(key, torch.tensor(self.body.pretrained_cfg[key]).view(3, 1, 1))
            feature_map = self.eval()(torch.zeros(1, 3, size, size))
        except Exception as error:  # of many types
            raise ValueError(
                f"encoder {name}, of timm, does not work with image_size {size} and "
                f"encoder_weights {weights} (see timm.list_models(); default needs the internet): "
                f"{shorten(str(error) or repr(error), 200)}"
            ) from error
        self.channels = feature_map.size(1)
        # Parameters that do not influence the map, such as those of the head, are frozen: DDP would
        # wait for their gradients.
        parameters = list(self.parameters())
        gradients = torch.autograd.grad(feature_map.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients):
            parameter.requires_grad_(config.encoder_lr > 0 and gradient is not None)

    def forward(self, image: Tensor) -> Tensor:
        mean, std = self.normalisation
        # In this order, equal normalisations leave the image unchanged to the bit.
        image = image * (std / self.std) + (mean - self.mean) / self.std
        features = self.body.forward_features(image)
        if features.ndim == 3:  # (B, n, C): prefix tokens such as [CLS], then patch tokens
            patches = features[:, getattr(self.body, "num_prefix_tokens", 0) :]
            side = math.isqrt(patches.size(1))
            return patches.transpose(1, 2).unflatten(2, (side, side))
        has_channels_last = features.size(3) == self.body.num_features != features.size(1)
        return features.permute(0, 3, 1, 2) if has_channels_last else features


def _timm_name(name: str) -> str:
    """Return timm's name, with torchvision's weights for a name of torchvision's."""
    base = name
    if name.startswith("regnet_"):  # such as regnet_x_400mf
        base = f"regnet{name[7]}_{REGNETS.get(name[9:])}"
    for known in timm.list_pretrained("*.tv*_in1k"):  # for two sets of weights, first the later
        if known.partition(".")[0] in (base, f"{base}_tv"):
            return known
    return name.removeprefix(TIMM)


def _build(name: str, weights: str, image_size: int) -> nn.Module:
    options = {}
    # Most networks accept images of any size; the others are built for one size.
    if getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False):
        options["img_size"] = image_size
    if weights not in ("none", "default"):
        # With this overlay, timm loads the state dict instead of downloading one. It also resizes
        # position embeddings, and renames the tensors of torchvision's RegNets.
        state = timm.models.load_state_dict(weights, weights_only=True)
        options["pretrained_cfg_overlay"] = {"state_dict": state, "custom_load": False}
    return timm.create_model(name, pretrained=weights != "none", **options)
