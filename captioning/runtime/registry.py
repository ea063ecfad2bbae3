"""Registries that name modules and import them when an entry is used.

A registry is a dict from a name of the configuration to "package.module:attribute", or to
"package.module" where the module itself is the entry. A new entry is one line.
"""

from importlib import import_module
from typing import Any


def load(entry: str) -> Any:
    """What "module:attribute" or "module" names; imports the module."""
    module, _, attribute = entry.partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
