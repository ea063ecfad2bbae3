"""Registries that name modules and import them when an entry is used.

A registry is a dict. Its keys are names used in configurations. Its values are
"package.module:attribute", or "package.module" if the module itself is the entry.
"""

from pkgutil import resolve_name
from typing import Any


def load(entry: str) -> Any:
    """Import a module; return it, or the attribute named after a colon."""
    return resolve_name(entry if ":" in entry else f"{entry}:")
