"""Files of an image encoder's weights, read without running what is in them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

# What can stand for a source of weights that there is not.
OTHERS = "none or a file"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a file of torch's or, by its suffix, of safetensors.

    Raises ValueError for values that are not finite, and whatever a broken file makes its reader
    stumble over; see `errors_naming`.
    """
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that are not torch's, then refused
            state = torch.load(path, map_location="cpu", weights_only=True)
    if not all(value.isfinite().all() for value in state.values()):
        raise ValueError("it holds values that are not finite")
    return state


@contextmanager
def errors_naming(path: Path, name: str) -> Iterator[None]:
    """Make every error a ValueError: a line that says what file is no weights of `name`."""
    try:
        yield
    except Exception as error:  # unpicklers raise whatever a broken file makes them stumble over
        raise ValueError(
            f"encoder_weights: {path} cannot be read as weights of {name}: {reason(error)}"
        ) from error


def reason(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
