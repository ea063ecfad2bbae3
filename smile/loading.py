"""Modules imported when they are used: alternatives, the sharded head, the trainers' mixin."""

from importlib import import_module
from typing import Any


def load(entry: str) -> Any:
    """What "module:attribute" names; imports the module."""
    module, _, attribute = entry.partition(":")
    return getattr(import_module(module), attribute)
