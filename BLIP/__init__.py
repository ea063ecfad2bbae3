"""Provides the BLIP captioner and functions that load the released checkpoints.

Each name in _MODULES is imported from its module at first use, so that reading a checkpoint does
not import the model.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "BlipCaptioner": "BLIP.blip",
    "build_captioner": "BLIP.blip",
    "inference_copy": "BLIP.inference",
    "load_itm": "BLIP.itm",
    "load_weights": "BLIP.weights.checkpoint",
    "read_checkpoint": "BLIP.weights.checkpoint",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
