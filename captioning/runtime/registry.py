"""Imports the entries of registries, only when an entry is used.

A registry is a dict. Its keys are names in configurations. Its values are
"package.module:attribute", or "package.module" if the entry is the module itself.
"""

from pkgutil import resolve_name
from typing import Any


def load(entry: str) -> Any:
    """Import the module of a registry's value; return the module, or the attribute after ":"."""
    return resolve_name(entry if ":" in entry else f"{entry}:")
