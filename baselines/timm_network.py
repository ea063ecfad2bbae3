"""Builds a network of timm without its head, for `baselines.image_encoder`."""

import math
from collections.abc import Sequence
from textwrap import shorten

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

    - name: timm/NAME, or the name of one of torchvision's networks that timm has: resnet, resnext,
      wide_resnet, densenet and regnet. timm computes the same features, bit by bit.
    - weights: "none" (random), "default" (downloaded), or a file with a state dict, of
      torchvision's network for a name of torchvision's.
    - image_size: the height and width of the images, for networks that are built for one size.
    - normalisation: of the images. `forward` changes it to that of the weights.

    Raises ValueError for an unknown name, and for weights that cannot be read or do not fit.
    """

    def __init__(self, name: str, weights: str, image_size: int, normalisation: Normalisation):
        super().__init__()
        self.body = _build(_timm_name(name), weights, image_size)
        self.body.reset_classifier(0)
        if name.startswith("regnet_"):  # the order of tensors in checkpoints is torchvision's
            for block in self.body.modules():
                block._modules = dict(
                    sorted(block._modules.items(), key=lambda item: item[0] != "downsample")
                )
        target = [self.body.pretrained_cfg[key] for key in ("mean", "std")]
        # `scale` and `shift` normalise for torchvision's names, and `mean` and `std`, which are in
        # checkpoints, for timm's: the order of operations of earlier checkpoints.
        own, folded = (target, NEUTRAL) if name.startswith(TIMM) else (NEUTRAL, target)
        given, own, folded = (
            torch.tensor(p).view(2, 3, 1, 1) for p in (normalisation, own, folded)
        )
        self.register_buffer("mean", own[0])
        self.register_buffer("std", own[1])
        self.register_buffer("scale", given[1] / folded[1], persistent=False)
        self.register_buffer("shift", (given[0] - folded[0]) / folded[1], persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        pixels = image * self.scale + self.shift
        features = self.body.forward_features((pixels - self.mean) / self.std)
        if features.ndim == 3:  # (B, n, C): prefix tokens such as [CLS], then patch tokens
            patches = features[:, getattr(self.body, "num_prefix_tokens", 0) :]
            side = math.isqrt(patches.size(1))
            return patches.transpose(1, 2).unflatten(2, (side, side))
        has_channels_last = features.size(3) == self.body.num_features != features.size(1)
        return features.permute(0, 3, 1, 2) if has_channels_last else features

    def rename_torchvision(self, weights: dict[str, Tensor], prefix: str) -> None:
        """Rename this network's tensors, if a checkpoint has them as torchvision names them.

        Checkpoints until commit 46748d31 do. The order of the tensors is the same.
        """
        if f"{prefix}mean" not in weights:
            values = [weights.pop(name) for name in [*weights] if name.startswith(prefix)]
            names = (prefix + name for name in self.state_dict())
            weights.update(zip(names, [self.mean, self.std, *values]))


def _timm_name(name: str) -> str:
    if name.startswith(TIMM):
        return name[len(TIMM) :]
    base = name
    if name.startswith("regnet_"):  # such as regnet_x_400mf
        base = f"regnet{name[7]}_{REGNETS.get(name[9:])}"
    for known in timm.list_pretrained("*.tv*_in1k"):  # for two sets of weights, first the later
        if known.partition(".")[0] in (base, f"{base}_tv"):
            return known
    raise ValueError(
        f"encoder: {name!r} is none of torchvision's resnet, resnext, wide_resnet, densenet and "
        "regnet that timm has; choose one, such as resnet50 or regnet_x_400mf, or timm/NAME"
    )


def _build(name: str, weights: str, image_size: int) -> nn.Module:
    options = {}
    try:
        # Most networks accept images of any size; the others are built for one size.
        if getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False):
            options["img_size"] = image_size
        if weights not in ("none", "default"):
            # With this overlay, timm loads the state dict instead of downloading one. It also
            # resizes position embeddings, and renames the tensors of torchvision's RegNets.
            state = timm.models.load_state_dict(weights, weights_only=True)
            options["pretrained_cfg_overlay"] = {"state_dict": state, "custom_load": False}
        return timm.create_model(name, pretrained=weights != "none", **options)
    except Exception as error:  # of many types
        raise ValueError(
            f"encoder: timm cannot build {name} for image_size {image_size} with encoder_weights "
            f"{weights} (default needs the internet): {shorten(str(error) or repr(error), 200)}"
        ) from error
