"""Imports a module at its first use, such as that of an alternative or of the sharded head."""

from importlib import import_module
from typing import Any


def load(entry: str) -> Any:
    """Import the module of `entry`, "module:attribute", and return the attribute."""
    module, _, attribute = entry.partition(":")
    return getattr(import_module(module), attribute)
