"""Registries that name modules and import them when an entry is used.

A registry is a dict. Its keys are names used in configurations. Its values are
"package.module:attribute", or "package.module" if the module itself is the entry.
"""

from importlib import import_module
from typing import Any


def load(entry: str) -> Any:
    """Import a module; return it, or the attribute named after a colon."""
    module, _, attribute = entry.partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
