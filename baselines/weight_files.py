"""Weights of an image encoder by their source: random, a package's or a file's; downloads."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor, nn

from baselines.packaged_weights import packaged_weights


def state_of(weights: str, name: str) -> Optional[dict[str, Tensor]]:
    """The state dict of network `name`; None where `weights` is "none", for random weights.

    weights: "package", see `baselines.packaged_weights`, or a file of torch's or, by its suffix, of
    safetensors. Pickled code is not run. Raises ValueError.
    """
    if weights == "none":
        return None
    key_of, path = str, Path(weights)
    if weights == "package":
        path, key_of = packaged_weights(name)
    with errors_naming(path, name):
        return {key_of(key): value for key, value in _read(path).items()}


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that torch then refuses
            state = torch.load(path, map_location="cpu", weights_only=True)
    if not all(value.isfinite().all() for value in state.values()):
        raise ValueError("it holds values that are not finite")
    return state


@contextmanager
def errors_naming(path: object, name: str) -> Iterator[None]:
    """Turn any error into a ValueError: one line that names the file and the network."""
    try:
        yield
    except Exception as error:  # a broken file raises any exception
        raise ValueError(
            f"encoder_weights: {path} cannot be read as weights of {name}: {reason(error)}"
        ) from error


def fetched(library: str, name: str, fetch: Callable[[], nn.Module]) -> nn.Module:
    """The network that `fetch` makes with the library's weights. Raises ValueError."""
    try:
        return fetch()
    except Exception as error:  # of the network, a hash, unpickling, or a size that does not fit
        raise ValueError(
            f"encoder_weights: cannot fetch {library}'s weights of {name} ({reason(error)}); "
            "connect to the network, or give none or a file"
        ) from error


def reason(error: Exception) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
