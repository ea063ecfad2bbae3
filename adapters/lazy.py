"""Makes the names of a package available without importing the modules that define them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Callable


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` (PEP 562), which imports a name's module at first use.

    modules: {module of the package: the names that it defines, separated by spaces}
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return get
