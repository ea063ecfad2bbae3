"""Imports point one way; files are short, and named for their content.

Each rule is also tried on small trees that break it, so that a rule that finds nothing is noticed.
"""

import ast
import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

BASE_PACKAGES = ("smile", "decoding", "adapters")  # all others may import these
REGISTRY = "captioning/captioners/registry.py"
NOT_IMPORTED = {"tests", "scripts", "examples"}  # folders of Python that is no package
# The subpackages of captioning: a file imports from its own and from those before it. Files at the
# root are programs; sweeps start `train`.
SUBPACKAGES = (
    *("runtime", "files", "data", "scenes", "metrics", "rewards", "captioners", "config", "models"),
    *("training", "train", "bulk", "lmms_plugin", "report", "sweep"),
)
CAPTIONER_CLASS = re.compile(r"\w+(Captioner|Decoder)")
OTHER_CLASSES = {"Captioner", "JSONDecoder"}  # the interface; the standard library's
ONLY_TORCH = ("smile", "decoding")
# Data sets and metrics work on files of any captioner, so they reach none, not even through
# another module. Downloading and reading files needs no captioner.
WITHOUT_CAPTIONERS = ("captioning.data", "captioning.metrics")
READERS = ("download", "safe_load", "checkpoint", "sharded_checkpoint")
NO_CAPTIONER = {f"BLIP.weights.{name}" for name in READERS}
JUDGE = "BLIP.itm"  # scores captions of any captioner, with layers of one
# Strings of a file that imports one of these name modules, as registries do.
IMPORTERS = {"captioning.runtime.registry.load", "importlib.import_module"}
MODULE_NAME = re.compile(r"\w+(\.\w+)*(:\w+)?")

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
LONGEST_FILE = 400
IN_THE_WHEEL = "smile"
NOT_OURS = {"data", "checkpoints", "output", "build"}


def source_files(root):
    """Yield the Python files and shell scripts of a checkout, without its environments."""
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


def packages(root):
    """Return what each package may import of the project, itself apart."""
    below, captioners = set(BASE_PACKAGES), captioner_packages(root)
    allowed = {name: set() for name in BASE_PACKAGES}
    allowed.update({name: below for name in captioners})
    allowed["captioning"] = below | captioners
    return {**allowed, "app": {*allowed}, "benchmarks": {*allowed}}


def folders_of_no_package(root):
    """Return the folders of Python that are not a package of the project."""
    folders = {
        path.relative_to(root).parts[0] for path in source_files(root) if path.suffix == ".py"
    }
    return sorted(folders - packages(root).keys() - NOT_IMPORTED)


def modules(root):
    """Return the names that each module of the packages imports, by the module's name."""
    known = packages(root)
    return {
        module_name(root, path): imported_names(root, path)
        for path in source_files(root)
        if path.suffix == ".py" and path.relative_to(root).parts[0] in known
    }


def is_within(name, package):
    return name == package or name.startswith(package + ".")


def standard_library():
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [*folder.iterdir(), *(folder / "lib-dynload").glob("*")]
    return {path.name.split(".")[0] for path in files} | set(sys.builtin_module_names)


def imports_against_the_layers(root):
    """Return "module imports name" for each import that the layers forbid."""
    known, placed = standard_library() | {"torch"}, packages(root)
    found = []
    for module, names in modules(root).items():
        own = module.split(".")[0]
        allowed = placed[own] | {own}
        for name in sorted(names):
            top = name.split(".")[0]
            foreign = own in ONLY_TORCH and top not in known | {own}
            if foreign or (top in placed and top not in allowed):
                found.append(f"{module} imports {name}")
    return found


def sources(names, graph):
    """Return the modules of names: "from package.module import thing" names one of two."""
    return {name if name in graph else name.rpartition(".")[0] for name in names} & {*graph}


def project_imports(root):
    """Return the modules of the packages that each of them imports, by its name."""
    graph = modules(root)
    return {module: sources(names, graph) - {module} for module, names in graph.items()}


def position(module):
    """Return the position in SUBPACKAGES of a module of captioning, the last for a program."""
    name = module.split(".")[1]
    return SUBPACKAGES.index(name) if name in SUBPACKAGES else len(SUBPACKAGES)


def imports_of_a_later_subpackage(root):
    """Return "module imports name" for imports against the order of SUBPACKAGES."""
    return [
        f"{module} imports {name}"
        for module, names in project_imports(root).items()
        for name in sorted(names)
        if is_within(module, "captioning")
        and is_within(name, "captioning")
        and name != "captioning"
        and position(name) > position(module)
    ]


def circles(root):
    """Return a line for each two files that import each other, directly or through others."""
    graph, reach = project_imports(root), {}
    for start in graph:
        seen, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        reach[start] = seen
    return [f"{a} and {b}" for a in graph for b in sorted(reach[a]) if a < b and a in reach[b]]


def files_that_are_no_program(root):
    """Return the files at the root of captioning that are not programs."""
    return [
        str(path.relative_to(root))
        for path in (root / "captioning").glob("*.py")
        if path.name != "__init__.py" and "__main__" not in path.read_text(encoding="utf-8")
    ]


def checks_of_the_captioner(root):
    """Return a line for each place where shared code checks which captioner it has."""
    found, captioners = [], captioner_packages(root)
    asking = packages(root).keys() - captioners
    for path in source_files(root):
        module = module_name(root, path)
        of_package = path.suffix == ".py" and path.relative_to(root).parts[0] in asking
        if not of_package or path == root / REGISTRY:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if _checks_class(node, module) or _checks_model(node):
                found.append(f"{module}:{node.lineno}")
    return found


def _checks_class(node, module):
    """Whether a captioner's class is named; in benchmarks, whether isinstance is asked."""
    if is_within(module, "benchmarks"):
        asked = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        parts = list(ast.walk(node)) if asked else []
    else:
        parts = [node]
    names = {getattr(part, "id", getattr(part, "attr", None)) for part in parts}
    if isinstance(node, ast.ImportFrom) and parts:
        names |= {alias.name for alias in node.names}
    return any(CAPTIONER_CLASS.fullmatch(str(name)) for name in names - OTHER_CLASSES)


def _checks_model(node):
    """Whether a `.model`, or a key "model", is compared with something."""
    if not isinstance(node, ast.Compare):
        return False
    if not any(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops):
        return False
    parts = [inner for side in (node.left, *node.comparators) for inner in ast.walk(side)]
    keys = [getattr(part, "slice", None) for part in parts]
    return any(getattr(part, "attr", None) == "model" for part in parts) or any(
        getattr(key, "value", None) == "model" for key in keys
    )


def ways_to_a_captioner(root):
    """Return "module reaches name" for each data set or metric that imports a captioner."""
    graph, captioners = modules(root), captioner_packages(root)
    graph[JUDGE] = set()  # what it imports is not looked at

    def is_captioner(name):
        harmless = any(is_within(name, module) for module in (*NO_CAPTIONER, JUDGE))
        return name.partition(".")[0] in captioners and not harmless

    found = []
    for start in graph:
        seen, waiting = {start}, [start]
        while waiting and any(is_within(start, package) for package in WITHOUT_CAPTIONERS):
            names = graph[waiting.pop()]
            found += [f"{start} reaches {name}" for name in names if is_captioner(name)]
            new = sources((name for name in names if not is_captioner(name)), graph) - seen
            seen |= new
            waiting += new
    return found


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


def packages_not_listed(root):
    """Return the packages that the wheel lacks, and those that it should not hold.

    The wheel is the objective's alone.
    """
    listed = re.search(r"^packages = (\[.*?\])", (root / "pyproject.toml").read_text(), re.S | re.M)
    present = {
        module_name(root, path)
        for path in source_files(root)
        if path.name == "__init__.py" and path.relative_to(root).parts[0] == IN_THE_WHEEL
    }
    return sorted(present ^ set(ast.literal_eval(listed[1])))


RULES = [
    folders_of_no_package,
    imports_against_the_layers,
    imports_of_a_later_subpackage,
    circles,
    files_that_are_no_program,
    checks_of_the_captioner,
    ways_to_a_captioner,
    files_too_long,
    files_with_vague_names,
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
    "BLIP/weights/download.py": "from huggingface_hub import hf_hub_download",
    "captioning/runtime/registry.py": "",
    REGISTRY: (
        "from captioning.runtime.registry import load\n"
        '{"blip": "BLIP.model", "rnn": "baselines", "vlm": "vlm.model:Vlm"}'
    ),
    "captioning/data/files.py": "import numpy\nfrom BLIP.weights.download import fetch",
    "captioning/models/build.py": "from captioning.captioners import registry\nx.model is y.model",
    "captioning/train.py": 'from BLIP.model import x\nx = "__main__"',
    "app/page.py": "from captioning import train",
    "benchmarks/speed.py": "from captioning import train\nfrom BLIP.model import BlipCaptioner",
    ".venv/utils.py": "x = 1\n" * 1000,
}
REGISTERED = "from captioning.runtime.registry import load\n'captioning.models.build:x'"
BAD = [
    (imports_against_the_layers, "smile/loss.py", "def f():\n    import transformers"),
    (imports_against_the_layers, "BLIP/model.py", "from captioning.config import Config"),
    (imports_against_the_layers, "vlm/model.py", "from importlib import import_module\n'BLIP:x'"),
    (imports_against_the_layers, "app/page.py", "import benchmarks"),
    (folders_of_no_package, "another/model.py", "import torch"),
    (imports_of_a_later_subpackage, "captioning/models/x.py", "def f():\n    from .. import train"),
    (imports_of_a_later_subpackage, "captioning/metrics/registry.py", REGISTERED),
    (circles, "BLIP/model.py", "from BLIP import Captioner"),
    (files_that_are_no_program, "captioning/loading.py", "def main():\n    pass"),
    (checks_of_the_captioner, "captioning/models/x.py", "from BLIP.model import BlipCaptioner"),
    (checks_of_the_captioner, "captioning/models/x.py", 'config.model == "blip"'),
    (checks_of_the_captioner, "benchmarks/x.py", "isinstance(x, (str, BLIP.BlipCaptioner))"),
    (ways_to_a_captioner, "captioning/data/files.py", "from captioning.train import x"),
    (files_too_long, "scripts/long.sh", ":\n" * (LONGEST_FILE + 1)),
    (files_with_vague_names, "captioning/common/seeds.py", ""),
    (packages_not_listed, "smile/losses/__init__.py", ""),
]


@pytest.mark.parametrize(("rule", "changed", "text"), BAD)
def test_rule_finds_what_is_wrong(tmp_path, rule, changed, text):
    for name, content in {**GOOD, changed: text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert len(rule(tmp_path)) == 1
