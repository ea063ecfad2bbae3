"""Provides the BLIP captioner and functions that load the released checkpoints.

Names are imported at first use, so that reading a checkpoint does not import the model.
"""

from importlib import import_module

_MODULES = {
    "BlipCaptioner": "blip",
    "build_captioner": "blip",
    "inference_copy": "blip",
    "load_itm": "itm",
    "load_weights": "checkpoint",
    "read_checkpoint": "checkpoint",
}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
