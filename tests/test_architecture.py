"""Imports point one way, files are short and named for what they hold.

The rules are tried on made-up trees first, so that a rule that finds nothing is noticed.
"""

import ast
import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

# What each package may import of the project, itself apart.
MAY_IMPORT = {
    "smile": set(),
    "decoding": set(),
    "BLIP": {"smile", "decoding"},
    "baselines": {"smile", "decoding"},
    "captioning": {"smile", "decoding", "BLIP", "baselines"},
    "app": {"smile", "decoding", "BLIP", "baselines", "captioning"},
    "benchmarks": {"smile", "decoding", "BLIP", "baselines", "captioning"},
}
NEED_TORCH_ALONE = ("smile", "decoding")
# A data set or a metric works on files of any captioner, so it cannot reach one that is trained
# here, not even through another module. Fetching or reading a file is no captioner.
WITHOUT_CAPTIONERS = ("captioning.data", "captioning.metrics")
CAPTIONERS = ("BLIP", "baselines")
NO_CAPTIONER = {"BLIP.download", "BLIP.errors", "BLIP.pickled"}

NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "misc", "common"}
LONGEST_FILE = 300
IN_THE_WHEEL = "smile"
NOT_OURS = {"data", "checkpoints", "output", "build"}


def source_files(root):
    """Yield the Python files and shell scripts of a checkout, environments in it left out."""
    for folder, subfolders, files in os.walk(root):
        folder = Path(folder)
        subfolders[:] = [
            name
            for name in subfolders
            if not (name.startswith(".") or (folder / name / "pyvenv.cfg").exists())
            and not (folder == root and name in NOT_OURS)
        ]
        yield from (folder / name for name in files if name.endswith((".py", ".sh")))


def module_name(root, path):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(root, path):
    """Yield the dotted name of everything that a file imports, anywhere in it."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            source = [*above, *([node.module] if node.module else [])]
            yield from (".".join([*source, alias.name]) for alias in node.names)


def modules(root):
    """Return the names that each module of the packages imports, by the module's name."""
    return {
        module_name(root, path): set(imported_names(root, path))
        for path in source_files(root)
        if path.suffix == ".py" and path.relative_to(root).parts[0] in MAY_IMPORT
    }


def is_within(name, package):
    return name == package or name.startswith(package + ".")


def standard_library():
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [*folder.iterdir(), *(folder / "lib-dynload").glob("*")]
    return {path.name.split(".")[0] for path in files} | set(sys.builtin_module_names)


def imports_against_the_grain(root):
    """Return "module imports name" for each import that the layers forbid."""
    known = standard_library() | {"torch"}
    found = []
    for module, names in modules(root).items():
        own = module.split(".")[0]
        allowed = MAY_IMPORT[own] | {own}
        for name in sorted(names):
            top = name.split(".")[0]
            foreign = own in NEED_TORCH_ALONE and top not in known | {own}
            if foreign or (top in MAY_IMPORT and top not in allowed):
                found.append(f"{module} imports {name}")
    return found


def ways_to_a_captioner(root):
    """Return "module reaches name" for each data set or metric that gets at a captioner."""
    graph = modules(root)
    found = []
    for start in graph:
        if not any(is_within(start, package) for package in WITHOUT_CAPTIONERS):
            continue
        seen, waiting = {start}, [start]
        while waiting:
            for name in graph[waiting.pop()]:
                harmless = any(is_within(name, module) for module in NO_CAPTIONER)
                if name.split(".")[0] in CAPTIONERS and not harmless:
                    found.append(f"{start} reaches {name}")
                    continue
                # "from package.module import thing" names a thing in a module, or a module.
                for module in (name, name.rpartition(".")[0]):
                    if module in graph and module not in seen:
                        seen.add(module)
                        waiting.append(module)
    return found


def files_too_long(root):
    return [
        str(path.relative_to(root))
        for path in source_files(root)
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST_FILE
    ]


def files_named_for_nothing(root):
    return [
        str(path.relative_to(root))
        for path in source_files(root)
        if NAMES_THAT_SAY_NOTHING & {*path.relative_to(root).parts[:-1], path.stem}
    ]


def packages_not_listed(root):
    """Return the packages that the wheel would leave out, not find, or hold without reason.

    It is the objective's: whoever installs that wants no `captioning` beside it.
    """
    listed = re.search(r"^packages = (\[.*?\])", (root / "pyproject.toml").read_text(), re.S | re.M)
    present = {
        module_name(root, path)
        for path in source_files(root)
        if path.name == "__init__.py" and path.relative_to(root).parts[0] == IN_THE_WHEEL
    }
    return sorted(present ^ set(ast.literal_eval(listed[1])))


RULES = [
    imports_against_the_grain,
    ways_to_a_captioner,
    files_too_long,
    files_named_for_nothing,
    packages_not_listed,
]


@pytest.mark.parametrize("rule", RULES)
def test_repository_keeps_the_rule(repository, rule):
    assert rule(repository) == []


GOOD = {
    "pyproject.toml": 'packages = [\n "smile"]\n',
    "smile/__init__.py": "import math\nimport torch.nn\nfrom . import loss\nfrom .loss import Loss",
    "smile/loss.py": "from torch.nn import functional",
    "BLIP/__init__.py": "from .model import Captioner",
    "BLIP/model.py": "import timm\nfrom smile import Loss",
    "BLIP/download.py": "from huggingface_hub import hf_hub_download",
    "captioning/train.py": "from BLIP.model import Captioner\nfrom captioning.data import files",
    "captioning/data/__init__.py": "",
    "captioning/data/files.py": "import numpy\nfrom BLIP.download import fetch",
    "captioning/long.py": "x = 1\n" * LONGEST_FILE,
    "app/page.py": "from captioning import train",
    "benchmarks/__init__.py": "",
    "benchmarks/speed.py": "from captioning import train",
    "tests/utility.py": "from app import page",
    ".venv/utils.py": "x = 1\n" * 1000,
    "env/pyvenv.cfg": "",
    "env/lib/misc.py": "",
    "data/utils.py": "",
}
BAD = [
    (imports_against_the_grain, "smile/loss.py", "import numpy.linalg"),
    (imports_against_the_grain, "smile/loss.py", "def f():\n    import transformers"),
    (imports_against_the_grain, "smile/loss.py", "from decoding import beam"),
    (imports_against_the_grain, "decoding/beam.py", "import timm"),
    (imports_against_the_grain, "BLIP/model.py", "from captioning.config import Config"),
    (imports_against_the_grain, "BLIP/model.py", "from baselines import lstm"),
    (imports_against_the_grain, "baselines/lstm.py", "from ..BLIP import model"),
    (imports_against_the_grain, "captioning/train.py", "import app.page"),
    (imports_against_the_grain, "app/page.py", "import benchmarks"),
    (imports_against_the_grain, "captioning/train.py", "from benchmarks import speed"),
    (ways_to_a_captioner, "captioning/data/files.py", "from BLIP import model"),
    (ways_to_a_captioner, "captioning/data/files.py", "import BLIP.model"),
    (ways_to_a_captioner, "captioning/data/files.py", "import baselines"),
    (ways_to_a_captioner, "captioning/data/files.py", "from captioning.train import x"),
    (ways_to_a_captioner, "BLIP/download.py", "from .model import Captioner"),
    (ways_to_a_captioner, "captioning/metrics/clip.py", "from ..train import x"),
    (ways_to_a_captioner, "captioning/metrics/clip.py", "from .. import train"),
    (files_too_long, "tests/test_long.py", "x = 1\n" * (LONGEST_FILE + 1)),
    (files_too_long, "scripts/long.sh", ":\n" * (LONGEST_FILE + 1)),
    (files_named_for_nothing, "captioning/utils.py", ""),
    (files_named_for_nothing, "captioning/common/seeds.py", ""),
    (packages_not_listed, "smile/losses/__init__.py", ""),
    (packages_not_listed, "pyproject.toml", 'packages = ["smile", "BLIP"]'),
]


def write_tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize("rule", RULES)
def test_rule_accepts_a_good_tree(tmp_path, rule):
    write_tree(tmp_path, GOOD)
    assert rule(tmp_path) == []


@pytest.mark.parametrize(("rule", "name", "text"), BAD)
def test_rule_finds_what_is_wrong(tmp_path, rule, name, text):
    write_tree(tmp_path, {**GOOD, name: text})
    assert len(rule(tmp_path)) == 1
