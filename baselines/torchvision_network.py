"""Builds a convolutional network of torchvision without its classification head."""

import os
from collections import OrderedDict
from unittest.mock import patch

import torchvision
from torch import nn

from baselines.weight_files import DOWNLOAD_ADVICE, one_line_errors, read_weights, weights_path

# The beginnings of the names of networks that can be an encoder.
FAMILIES = (
    "resnet",
    "resnext",
    "wide_resnet",
    "squeezenet",
    "densenet",
    "shufflenet",
    "mobilenet",
    "mnasnet",
    "regnet",
)
# The image normalisation with which torchvision's weights were trained.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SAFE_LOADING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # an environment variable that torch reads


def encoder_names() -> list[str]:
    """Return the names of torchvision's networks that can be an encoder."""
    names = torchvision.models.list_models(module=torchvision.models)
    return [name for name in names if name.startswith(FAMILIES)]


def torchvision_network(name: str, weights: str) -> nn.Module:
    """Return a network that maps images (B, 3, S, S) to a feature map (B, C, h, w).

    The images must be normalised by IMAGENET_MEAN and IMAGENET_STD. name: one of `encoder_names`.
    weights: "none", "default", "package" or a file, see `baselines.image_encoder`. Raises
    ValueError for an unknown name, and for weights that cannot be read or do not fit.
    """
    if name not in encoder_names():
        raise ValueError(
            f"encoder: {name!r} is unknown; choose one of torchvision's {', '.join(FAMILIES)}, "
            "such as regnet_x_400mf or resnet50, or timm/NAME"
        )
    return _remove_head(_build_network(name, weights))


def _build_network(name: str, weights: str) -> nn.Module:
    get_model = torchvision.models.get_model
    if weights == "default":
        download = f"encoder_weights: cannot download torchvision's weights of {name}"
        # SAFE_LOADING makes torch.load use weights_only=True. Without it, unpickling a downloaded
        # file could run code.
        with (
            one_line_errors(download, DOWNLOAD_ADVICE),
            patch.dict(os.environ, {SAFE_LOADING: "1"}),
        ):
            return get_model(name, weights="DEFAULT")
    network = get_model(name, weights=None)
    if weights != "none":
        path = weights_path(weights, name)
        with one_line_errors(f"encoder_weights: {path} cannot be read as weights of {name}"):
            network.load_state_dict(read_weights(path))
    return network


def _remove_head(network: nn.Module) -> nn.Module:
    """Return the layers that compute the feature map (B, C, h, w), without pooling and head."""
    if hasattr(network, "features"):  # squeezenet, densenet, mobilenet
        is_densenet = isinstance(network, torchvision.models.DenseNet)
        # DenseNet applies its last activation in `forward`, not in `features`.
        return nn.Sequential(network.features, nn.ReLU()) if is_densenet else network.features
    if hasattr(network, "layers"):  # mnasnet
        return network.layers
    children = OrderedDict(network.named_children())
    for head in ("avgpool", "fc"):  # shufflenet has no avgpool: it pools in `forward`
        children.pop(head, None)
    return nn.Sequential(children)
