"""Reads or downloads the weights of an image encoder. Every failure is a one-line ValueError."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor, nn

from baselines.packaged_weights import packaged_weights


def state_of(weights: str, name: str) -> Optional[dict[str, Tensor]]:
    """Read the state dict of network `name`. None if `weights` is "none" (random weights).

    weights: "none", "package" (see `baselines.packaged_weights`) or a file: `.safetensors`,
    otherwise a file of `torch.save`. Pickled code is not run. Raises ValueError.
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
            warnings.simplefilter("ignore")  # torch warns before it refuses a pickle
            state = torch.load(path, map_location="cpu", weights_only=True)
    if not all(value.isfinite().all() for value in state.values()):
        raise ValueError("it has values that are not finite")
    return state


@contextmanager
def errors_naming(path: object, name: str) -> Iterator[None]:
    """Turn any error into a one-line ValueError that names the file and the network."""
    try:
        yield
    except Exception as error:  # a broken file can raise any exception
        raise ValueError(
            f"encoder_weights: {path} cannot be read as weights of {name}: {reason(error)}"
        ) from error


def fetched(library: str, name: str, fetch: Callable[[], nn.Module]) -> nn.Module:
    """Call `fetch`, which builds a network with downloaded weights. Raises ValueError."""
    try:
        return fetch()
    # No connection, a wrong hash, a file that cannot be unpickled, or tensors of a wrong size.
    except Exception as error:
        raise ValueError(
            f"encoder_weights: cannot download {library}'s weights of {name} ({reason(error)}); "
            "connect to the network, or set encoder_weights to none or a file"
        ) from error


def reason(error: Exception) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
