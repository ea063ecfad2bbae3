"""Imports point one way; files are short, and named for their content."""

import re
import sys
from graphlib import TopologicalSorter

import pytest

from tests.sources import captioner_packages, chains, imported_names, module_name, source_files

ONLY_TORCH = ("smile", "decoding")
# Subpackages of captioning that work with files of any captioner.
NO_CAPTIONER = ("runtime", "data", "scenes", "rewards")
NO_PACKAGES = {"tests", "scripts", "examples", "web"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}


def modules(root):
    """Return the names that each module of the packages imports, by the module's name."""
    known, _ = chains(root)
    return {
        module_name(root, path): imported_names(root, path)
        for path in source_files(root)
        if path.suffix == ".py" and path.relative_to(root).parts[0] in known
    }


@pytest.mark.skipif(sys.version_info < (3, 10), reason="does not know the standard library")
def test_imports_are_those_that_the_page_allows(repository):
    packages, subpackages = chains(repository)
    folders = {file.relative_to(repository).parts[0] for file in source_files(repository)}
    assert folders == packages.keys() | NO_PACKAGES
    rooms = {path.parent.name for path in repository.glob("captioning/*/__init__.py")}
    assert rooms == subpackages.keys() - {"programs"}
    graph, captioners, found = modules(repository), captioner_packages(repository), []
    assert len(graph) > 150 and captioners == {"BLIP", "baselines", "vlm"}
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
                libraries = {*sys.stdlib_module_names, "torch"}
                against = package in ONLY_TORCH and target not in libraries
            found += [f"{module} imports {name}"] * against
    assert found == []


def test_no_modules_import_each_other_in_a_circle(repository):
    known = modules(repository)
    graph = {
        # "from package.module import thing" names one of two.
        module: {x if x in known else x.rpartition(".")[0] for x in names} & {*known} - {module}
        for module, names in known.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_shared_code_does_not_check_which_captioner_it_has(repository):
    """Only benchmarks build captioners by their classes, and no code compares a `model`."""
    packages = captioner_packages(repository)
    paths = [path for name in packages for path in repository.glob(f"{name}/**/*.py")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    classes = re.findall(r"^class (\w+)\(.*\bCaptionGenerator\b", sources, re.M)
    assert len(classes) == 3
    compares = r"""(\.model|\["model"\])\)? (==|!=|in|not in) |(==|!=) \w+\.model\b"""
    for package in chains(repository)[0].keys() - packages:
        wrong = compares if package == "benchmarks" else rf"{compares}|\b({'|'.join(classes)})\b"
        for path in repository.glob(f"{package}/**/*.py"):
            assert not re.search(wrong, path.read_text(encoding="utf-8")), path


def test_files_are_short_and_not_named_vaguely(repository):
    for path in source_files(repository):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
        assert not VAGUE_NAMES & {*path.relative_to(repository).parts[:-1], path.stem}, path
