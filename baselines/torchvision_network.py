"""Any of torchvision's convolutional classifiers, without its head."""

import os
from collections import OrderedDict
from unittest.mock import patch

import torchvision
from torch import nn

from baselines.weight_files import errors_naming, fetched, state_of

FAMILIES = (
    *("resnet", "resnext", "wide_resnet", "squeezenet", "densenet", "shufflenet"),
    *("mobilenet", "mnasnet", "regnet"),
)
# The normalisation that torchvision's weights were trained with.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SAFE_LOADING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch's own switch


def encoder_names() -> list[str]:
    """The networks of torchvision that can be an encoder."""
    names = torchvision.models.list_models(module=torchvision.models)
    return [name for name in names if name.startswith(FAMILIES)]


def torchvision_network(name: str, weights: str) -> nn.Module:
    """Maps images (B, 3, S, S), normalised by IMAGENET_MEAN and IMAGENET_STD, to (B, C, h, w).

    name: one of `encoder_names`; weights: as in `baselines.image_encoder`. Raises ValueError for an
    unknown name, and for weights that cannot be read or do not fit.
    """
    if name not in encoder_names():
        raise ValueError(
            f"encoder: {name!r} is unknown; choose one of torchvision's {', '.join(FAMILIES)}, "
            "such as regnet_x_400mf or resnet50, or timm/NAME"
        )
    return _without_head(_load(name, weights))


def _load(name: str, weights: str) -> nn.Module:
    get_model = torchvision.models.get_model
    if weights == "default":
        # Forces weights_only loading: unpickling a download could run code.
        with patch.dict(os.environ, {SAFE_LOADING: "1"}):
            return fetched("torchvision", name, lambda: get_model(name, weights="DEFAULT"))
    network, state = get_model(name, weights=None), state_of(weights, name)
    if state is not None:
        with errors_naming(weights, name):
            network.load_state_dict(state)
    return network


def _without_head(network: nn.Module) -> nn.Module:
    """The part of a classifier that ends in a map (B, C, h, w); its parameters keep their names."""
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
