"""Imports point one way; files are short, and named for their content."""

import ast
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.sources import (
    REGISTRY,
    captioner_packages,
    imported_names,
    module_name,
    packages,
    source_files,
)

# The subpackages of captioning: a file imports from its own and from those before it. Files at the
# root are programs; sweeps start `train`.
SUBPACKAGES = (
    *("runtime", "files", "data", "scenes", "metrics", "rewards", "captioners", "config", "models"),
    *("training", "train", "bulk", "report", "sweep", "demo"),
)
CAPTIONER_CLASS = re.compile(r"\w+(Captioner|Decoder)")
OTHER_CLASSES = {"Captioner", "JSONDecoder"}  # the interface; the standard library's
ONLY_TORCH = ("smile", "decoding")
# Data sets and metrics work on files of any captioner, so they import none. Downloading and reading
# files needs no captioner.
READERS = ("download", "safe_load", "checkpoint")
NO_CAPTIONER = {f"BLIP.{name}" for name in READERS}
JUDGE = "BLIP.itm"  # scores captions of any captioner, with layers of one

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
LONGEST_FILE = 400


def modules(root):
    """Return the names that each module of the packages imports, by the module's name."""
    known = packages(root)
    return {
        module_name(root, path): imported_names(root, path)
        for path in source_files(root)
        if path.suffix == ".py" and path.relative_to(root).parts[0] in known
    }


def standard_library():
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [*folder.iterdir(), *(folder / "lib-dynload").glob("*")]
    return {path.name.split(".")[0] for path in files} | set(sys.builtin_module_names)


def rank(name):
    """The position of a module of captioning among its subpackages, the last for a program."""
    part = f"{name}.".split(".")[1]
    return SUBPACKAGES.index(part) if part in SUBPACKAGES else len(SUBPACKAGES)


def imports_against_the_layers(root):
    """Return "module imports name" for each import that the layers forbid."""
    known, placed = standard_library() | {"torch"}, packages(root)
    folders = {file.relative_to(root).parts[0] for file in source_files(root)}
    assert folders - placed.keys() <= {"tests", "scripts", "examples", "web"}
    graph, captioners, found = modules(root), captioner_packages(root), []
    assert len(graph) > 200 and captioners >= {"BLIP", "baselines", "vlm"}
    for module, names in graph.items():
        own = module.split(".")[0]
        of_files = module in NO_CAPTIONER or rank(module) <= SUBPACKAGES.index("metrics")
        for name in sorted(names):
            top = name.split(".")[0]
            foreign = own in ONLY_TORCH and top not in known | {own}
            above = top in placed and top not in placed[own] | {own}
            later = own == top == "captioning" != name and rank(name) > rank(module)
            harmless = any(f"{name}.".startswith(f"{n}.") for n in (*NO_CAPTIONER, JUDGE))
            captions = of_files and top in captioners and not harmless
            if foreign or above or later or captions:
                found.append(f"{module} imports {name}")
    return found


def sources(names, graph):
    """Return the modules of names: "from package.module import thing" names one of two."""
    return {name if name in graph else name.rpartition(".")[0] for name in names} & {*graph}


def circles(root):
    """Return a line for each two files that import each other, directly or through others."""
    known, reach = modules(root), {}
    graph = {module: sources(names, known) - {module} for module, names in known.items()}
    for start in graph:
        seen, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        reach[start] = seen
    return [f"{a} and {b}" for a in graph for b in sorted(reach[a]) if a < b and a in reach[b]]


def checks_of_the_captioner(root):
    """Return a line for each place where shared code checks which captioner it has."""
    found, shared = [], packages(root).keys() - captioner_packages(root)
    for path in source_files(root):
        name = path.relative_to(root)
        if path.suffix == ".py" and name.parts[0] in shared and str(name) != REGISTRY:
            measured = name.parts[0] == "benchmarks"  # builds captioners; must not ask for one
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if _checks_class(node, measured) or _checks_model(node):
                    found.append(f"{name}:{node.lineno}")
    return found


def _checks_class(node, measured):
    """Whether a captioner's class is named; in benchmarks, whether isinstance is asked."""
    asked = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
    parts = (ast.walk(node) if asked else []) if measured else [node, *getattr(node, "names", [])]
    names = {getattr(part, key, None) for part in parts for key in ("id", "attr", "name")}
    return any(CAPTIONER_CLASS.fullmatch(str(name)) for name in names - OTHER_CLASSES)


def _checks_model(node):
    """Whether a `.model`, or a key "model", is compared with something."""
    kinds = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
    if not isinstance(node, ast.Compare) or not any(isinstance(op, kinds) for op in node.ops):
        return False
    parts = [inner for side in (node.left, *node.comparators) for inner in ast.walk(side)]
    keys = [getattr(getattr(part, "slice", None), "value", None) for part in parts]
    return "model" in keys or any(getattr(part, "attr", None) == "model" for part in parts)


def files_too_long(root):
    return [
        str(path.relative_to(root))
        for path in source_files(root)
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST_FILE
    ]


def files_with_vague_names(root):
    return [
        str(path.relative_to(root))
        for path in source_files(root)
        if VAGUE_NAMES & {*path.relative_to(root).parts[:-1], path.stem}
    ]


RULES = [
    imports_against_the_layers,
    circles,
    checks_of_the_captioner,
    files_too_long,
    files_with_vague_names,
]


@pytest.mark.parametrize("rule", RULES)
def test_repository_keeps_the_rule(repository, rule):
    assert rule(repository) == []
