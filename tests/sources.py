"""The project's source files, and what each of them imports."""

import ast
import functools
import re

REGISTRY = "captioning/captioners/registry.py"
# Strings of a file that imports one of these name modules, as registries do.
IMPORTERS = {"captioning.runtime.registry.load", "importlib.import_module"}
MODULE_NAME = re.compile(r"\w+(\.\w+)*(:\w+)?")
NOT_OURS = {"data", "checkpoints", "output", "build"}


def source_files(root):
    """Yield the Python files and shell scripts of a checkout, without its environments."""
    for path in sorted(root.iterdir()):
        ours = path.is_dir() and not path.name.startswith(".") and path.name not in NOT_OURS
        if ours and not (path / "pyvenv.cfg").exists():
            yield from (file for file in path.rglob("*.*") if file.suffix in (".py", ".sh"))


def module_name(root, path):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imported_names(root, path):
    """Return the dotted names of everything that a file imports, also by an entry of a registry."""
    package = path.relative_to(root).parent.parts
    nodes, names = list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            source = [*above, *([node.module] if node.module else [])]
            names |= {".".join([*source, alias.name]) for alias in node.names}
    if names & IMPORTERS:
        texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
        entries = [text for text in texts if isinstance(text, str) and MODULE_NAME.fullmatch(text)]
        places = {path.name for path in root.iterdir() if path.is_dir()}
        entries = [entry.replace(":", ".") for entry in entries]
        names |= {entry for entry in entries if entry.partition(".")[0] in places}
    return names


def captioner_packages(root):
    """Return the packages that the registry of captioners names."""
    names = imported_names(root, root / REGISTRY)
    return {name.split(".")[0] for name in names} - {"captioning"}


def chains(root):
    """Return the chains of docs/architecture.md, of packages and of captioning's subpackages.

    A chain is a dict {name: position}; names import only what has a lower position.
    """
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = [line.split("<-") for line in text.splitlines() if "<-" in line]
    packages, subpackages = (
        {name.strip(): position for position, names in enumerate(line) for name in names.split(",")}
        for line in lines
    )
    return packages, subpackages
