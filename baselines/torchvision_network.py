"""Any of torchvision's convolutional classifiers, without its head."""

import os
from collections import OrderedDict
from pathlib import Path
from unittest.mock import patch

import torchvision
from torch import nn

from baselines.packaged_weights import packaged_weights
from baselines.weight_files import OTHERS, errors_naming, read_weights, reason

FAMILIES = (
    *("resnet", "resnext", "wide_resnet", "squeezenet", "densenet", "shufflenet"),
    *("mobilenet", "mnasnet", "regnet"),
)
# The normalisation that torchvision's weights expect.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SAFE_LOADING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch's own switch


def encoder_names() -> list[str]:
    """The torchvision networks that can be an encoder."""
    names = torchvision.models.list_models(module=torchvision.models)
    return [name for name in names if name.startswith(FAMILIES)]


def torchvision_network(name: str, weights: str) -> nn.Module:
    """Images (B, 3, S, S), normalised with IMAGENET_MEAN and IMAGENET_STD, to a map (B, C, h, w).

    name: one of `encoder_names`; weights: as in `baselines.image_encoder`. Raises ValueError for an
    unknown name, and for weights that are not available or do not fit.
    """
    if name not in encoder_names():
        raise ValueError(
            f"encoder: {name!r} is unknown; choose one of torchvision's {', '.join(FAMILIES)}, "
            "such as regnet_x_400mf or resnet50, or timm/NAME"
        )
    return _without_head(_load(name, weights))


def _load(name: str, weights: str) -> nn.Module:
    if weights == "default":
        try:
            # torchvision loads downloads without weights_only, which would run code in the file.
            with patch.dict(os.environ, {SAFE_LOADING: "1"}):
                return torchvision.models.get_model(name, weights="DEFAULT")
        except Exception as error:  # network, hash or unpickling
            raise ValueError(
                f"encoder_weights: cannot fetch torchvision's weights of {name} "
                f"({reason(error)}); connect to the network, or give {OTHERS}"
            ) from error
    if weights == "package":
        packaged_weights(name)  # raises: there are none
    network = torchvision.models.get_model(name, weights=None)
    if weights != "none":
        path = Path(weights)
        with errors_naming(path, name):
            network.load_state_dict(read_weights(path))
    return network


def _without_head(network: nn.Module) -> nn.Module:
    """The part of a classifier that ends in a map (B, C, h, w), with unchanged names."""
    if hasattr(network, "features"):  # squeezenet, densenet, mobilenet
        dense = isinstance(network, torchvision.models.DenseNet)
        # DenseNet applies its last activation in forward.
        return nn.Sequential(network.features, nn.ReLU()) if dense else network.features
    if hasattr(network, "layers"):  # mnasnet
        return network.layers
    children = OrderedDict(network.named_children())
    for head in ("avgpool", "fc"):  # shufflenet pools in forward
        children.pop(head, None)
    return nn.Sequential(children)
