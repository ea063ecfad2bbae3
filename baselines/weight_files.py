"""Reads files of encoder weights without executing code in them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

# What errors suggest instead of weights that are not available.
OTHERS = "none or a file"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a torch file or, by its suffix, a safetensors file.

    Raises ValueError for values that are not finite, and any exception for a broken file; see
    `errors_naming`.
    """
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign pickles, which are refused
            state = torch.load(path, map_location="cpu", weights_only=True)
    if not all(value.isfinite().all() for value in state.values()):
        raise ValueError("it holds values that are not finite")
    return state


@contextmanager
def errors_naming(path: Path, name: str) -> Iterator[None]:
    """Turn every error into a ValueError: one line that names the file and the network."""
    try:
        yield
    except Exception as error:  # a broken file can raise anything
        raise ValueError(
            f"encoder_weights: {path} cannot be read as weights of {name}: {reason(error)}"
        ) from error


def reason(error: Exception) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
