"""Generates captions: greedy decoding, beam search, sampling, guidance. Needs torch only.

Names are imported at first use, so that a program that only cleans texts does not import the rest.
"""

from importlib import import_module

_INTERFACE = ("Decoded", "DecodingSettings", "Generated", "SettingsError", "Step", "until_end")
_MODULES = {"decode": "search", **dict.fromkeys(_INTERFACE, "interface")}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
