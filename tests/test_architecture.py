"""Imports point one way; files are short, and named for their content."""

import ast
import sys
import sysconfig
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import captioner_packages, chains, imported_names, module_name, source_files

ONLY_TORCH = ("smile", "decoding")
# Subpackages of captioning that work with files of any captioner.
NO_CAPTIONER = ("runtime", "data", "scenes", "rewards")
NO_PACKAGES = {"tests", "scripts", "examples", "web"}

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
LONGEST_FILE = 400


def modules(root):
    """Return the names that each module of the packages imports, by the module's name."""
    known, _ = chains(root)
    return {
        module_name(root, path): imported_names(root, path)
        for path in source_files(root)
        if path.suffix == ".py" and path.relative_to(root).parts[0] in known
    }


def standard_library():
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [*folder.iterdir(), *(folder / "lib-dynload").glob("*")]
    return {path.name.split(".")[0] for path in files} | set(sys.builtin_module_names)


def imports_against_the_layers(root):
    """Return "module imports name" for each import that docs/architecture.md does not allow."""
    packages, subpackages = chains(root)
    folders = {file.relative_to(root).parts[0] for file in source_files(root)}
    assert folders == packages.keys() | NO_PACKAGES
    rooms = {path.parent.name for path in root.glob("captioning/*/__init__.py")}
    assert rooms == subpackages.keys() - {"programs"}
    graph, captioners, found = modules(root), captioner_packages(root), []
    assert len(graph) > 150 and captioners == {"BLIP", "baselines", "vlm"}
    allowed = standard_library() | {"torch"}
    for module, names in graph.items():
        package, part = f"{module}.".split(".")[:2]
        for name in sorted(names - {package}):
            target, target_part = f"{name}.".split(".")[:2]
            if target == package:
                programs = subpackages["programs"]
                ranks = [subpackages.get(part, programs) for part in (target_part, part)]
                against = package == "captioning" and ranks[0] > ranks[1]
            elif target in packages:
                independent = part in NO_CAPTIONER and target in captioners
                against = packages[target] >= packages[package] or independent
            else:
                against = package in ONLY_TORCH and target not in allowed
            if against:
                found.append(f"{module} imports {name}")
    return found


def sources(names, graph):
    """Return the modules of names: "from package.module import thing" names one of two."""
    return {name if name in graph else name.rpartition(".")[0] for name in names} & {*graph}


def circles(root):
    """Return the modules of a circle of imports, [] if there is none."""
    known = modules(root)
    graph = {module: sources(names, known) - {module} for module, names in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def captioner_classes(root):
    """Return the names of the classes of captioners, which are derived from CaptionGenerator."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for package in captioner_packages(root)
        for path in root.glob(f"{package}/**/*.py")
    ]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base) for base in node.bases} for node in classes}
    return {name for name, names in bases.items() if "CaptionGenerator" in names}


def checks_of_the_captioner(root):
    """Return a line for each place where shared code checks which captioner it has.

    Only benchmarks build captioners by their classes.
    """
    found, classes = [], captioner_classes(root)
    assert len(classes) == 3
    for package in chains(root)[0].keys() - captioner_packages(root):
        for path in root.glob(f"{package}/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = _names(node) & classes and package != "benchmarks"
                if names or _checks_class(node, classes) or _checks_model(node):
                    found.append(f"{path.relative_to(root)}:{node.lineno}")
    return found


def _names(node):
    """Return the names that stand in a node itself, imported ones included."""
    parts = [node, *getattr(node, "names", [])]
    return {getattr(part, key, None) for part in parts for key in ("id", "attr", "name")}


def _checks_class(node, classes):
    """Whether isinstance is called with a captioner's class."""
    is_asked = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
    return is_asked and any(_names(part) & classes for part in ast.walk(node))


def _checks_model(node):
    """Whether a `.model`, or a key "model", is compared with something."""
    kinds = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
    if not isinstance(node, ast.Compare) or not any(isinstance(op, kinds) for op in node.ops):
        return False
    parts = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
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
