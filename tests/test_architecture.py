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

BELOW = ("smile", "decoding", "adapters")  # the packages that all others may import
REGISTRY = "captioning/captioners/registry.py"
NO_PACKAGES = {"tests", "scripts", "examples"}  # folders of Python that is not imported
# The rooms of captioning: a file may import of its own room and of those before it. Files at the
# root are programs, of which sweeps start one.
ROOMS = (
    *("runtime", "files", "data", "scenes", "metrics", "rewards", "captioners", "config", "models"),
    *("training", "train", "bulk", "report", "sweep"),
)
# Where a captioner may be asked which it is.
KNOWS_CAPTIONERS = "captioning.captioners.registry"
A_CAPTIONERS_CLASS = re.compile(r"\w+(Captioner|Decoder)")
NOT_OF_ONE = {"Captioner", "JSONDecoder"}  # the interface; of the standard library
NEED_TORCH_ALONE = ("smile", "decoding")
# A data set or a metric works on files of any captioner, so it cannot reach one that is trained
# here, not even through another module. Fetching or reading a file is no captioner.
WITHOUT_CAPTIONERS = ("captioning.data", "captioning.metrics")
NO_CAPTIONER = {"BLIP.weights.download", "BLIP.weights.safe_load"}

NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "misc", "common"}
LONGEST_FILE = 400
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


def captioner_packages(root):
    """Return the packages that the registry of captioners names."""
    names = imported_names(root, root / REGISTRY)
    return {name.split(".")[0] for name in names} - {"captioning"}


def packages(root):
    """Return what each package may import of the project, itself apart."""
    below, captioners = set(BELOW), captioner_packages(root)
    allowed = {name: set() for name in BELOW}
    allowed.update({name: below for name in captioners})
    allowed["captioning"] = below | captioners
    return {**allowed, "app": {*allowed}, "benchmarks": {*allowed}}


def packages_without_a_place(root):
    """Return the folders of Python that are no package of the project."""
    folders = {
        path.relative_to(root).parts[0] for path in source_files(root) if path.suffix == ".py"
    }
    return sorted(folders - packages(root).keys() - NO_PACKAGES)


def modules(root):
    """Return the names that each module of the packages imports, by the module's name."""
    known = packages(root)
    return {
        module_name(root, path): set(imported_names(root, path))
        for path in source_files(root)
        if path.suffix == ".py" and path.relative_to(root).parts[0] in known
    }


def is_within(name, package):
    return name == package or name.startswith(package + ".")


def standard_library():
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [*folder.iterdir(), *(folder / "lib-dynload").glob("*")]
    return {path.name.split(".")[0] for path in files} | set(sys.builtin_module_names)


def imports_against_the_grain(root):
    """Return "module imports name" for each import that the layers forbid."""
    known, placed = standard_library() | {"torch"}, packages(root)
    found = []
    for module, names in modules(root).items():
        own = module.split(".")[0]
        allowed = placed[own] | {own}
        for name in sorted(names):
            top = name.split(".")[0]
            foreign = own in NEED_TORCH_ALONE and top not in known | {own}
            if foreign or (top in placed and top not in allowed):
                found.append(f"{module} imports {name}")
    return found


def project_imports(root):
    """Return the modules of the packages that each of them imports, by its name."""
    graph = modules(root)
    found = {}
    for module, names in graph.items():
        # "from package.module import thing" names a thing in a module, or a module.
        sources = {name if name in graph else name.rpartition(".")[0] for name in names}
        found[module] = {name for name in sources if name in graph and name != module}
    return found


def room_of(module):
    """Return the place in ROOMS of a module of captioning, the last for a program."""
    room = module.split(".")[1]
    return ROOMS.index(room) if room in ROOMS else len(ROOMS)


def imports_of_a_later_room(root):
    """Return "module imports name" where the rooms of captioning are entered backwards."""
    return [
        f"{module} imports {name}"
        for module, names in project_imports(root).items()
        for name in sorted(names)
        if is_within(module, "captioning")
        and is_within(name, "captioning")
        and name != "captioning"
        and room_of(name) > room_of(module)
    ]


def circles(root):
    """Return a line for each two files that import each other, by way of others or directly."""
    graph = project_imports(root)
    reach = {}
    for start in graph:
        seen, waiting = set(), [start]
        while waiting:
            for name in graph[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        reach[start] = seen
    return [f"{a} and {b}" for a in graph for b in sorted(reach[a]) if a < b and a in reach[b]]


def loose_files(root):
    """Return the files at the root of captioning that are no program."""
    return [
        str(path.relative_to(root))
        for path in (root / "captioning").glob("*.py")
        if path.name != "__init__.py" and "__main__" not in path.read_text(encoding="utf-8")
    ]


def questions_which_captioner(root):
    """Return a line where a file asks which captioner it has before it."""
    found, captioners = [], captioner_packages(root)
    asking = packages(root).keys() - captioners
    for path in source_files(root):
        module = module_name(root, path)
        of_package = path.suffix == ".py" and path.relative_to(root).parts[0] in asking
        if not of_package or module == KNOWS_CAPTIONERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if _asks_for_type(node, module) or _asks_for_model(node):
                found.append(f"{module}:{node.lineno}")
    return found


def _asks_for_type(node, module):
    """Whether a captioner's class is asked for, or, but in benchmarks, known at all."""
    if is_within(module, "benchmarks"):
        asked = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        parts = list(ast.walk(node)) if asked else []
    else:
        parts = [node]
    names = {getattr(part, "id", getattr(part, "attr", None)) for part in parts}
    if isinstance(node, ast.ImportFrom) and parts:
        names |= {alias.name for alias in node.names}
    return any(A_CAPTIONERS_CLASS.fullmatch(str(name)) for name in names - NOT_OF_ONE)


def _asks_for_model(node):
    """Whether a `.model`, or a key "model", is compared with something."""
    if not isinstance(node, ast.Compare):
        return False
    if not any(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops):
        return False
    parts = [inner for side in (node.left, *node.comparators) for inner in ast.walk(side)]
    return any(
        (isinstance(part, ast.Attribute) and part.attr == "model")
        or (
            isinstance(part, ast.Subscript)
            and isinstance(part.slice, ast.Constant)
            and part.slice.value == "model"
        )
        for part in parts
    )


def ways_to_a_captioner(root):
    """Return "module reaches name" for each data set or metric that gets at a captioner."""
    graph, captioners = modules(root), captioner_packages(root)
    found = []
    for start in graph:
        if not any(is_within(start, package) for package in WITHOUT_CAPTIONERS):
            continue
        seen, waiting = {start}, [start]
        while waiting:
            for name in graph[waiting.pop()]:
                harmless = any(is_within(name, module) for module in NO_CAPTIONER)
                if name.split(".")[0] in captioners and not harmless:
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
    packages_without_a_place,
    imports_against_the_grain,
    imports_of_a_later_room,
    circles,
    loose_files,
    questions_which_captioner,
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
    "BLIP/weights/download.py": "from huggingface_hub import hf_hub_download",
    "captioning/demo/runs.py": '__name__ == "__main__"',
    "captioning/train.py": (
        'from BLIP.model import x\nfrom captioning.data import files\nx = "__main__"'
    ),
    "captioning/captioners/registry.py": "import BLIP.model\nimport baselines\nimport vlm.model",
    "vlm/model.py": "from decoding import beam",
    "captioning/models/build.py": "from captioning.captioners import registry\nx.model is y.model",
    "captioning/sweep/run.py": "from captioning import train",
    "captioning/data/__init__.py": "",
    "captioning/data/files.py": "import numpy\nfrom BLIP.weights.download import fetch",
    "captioning/data/long.py": "x = 1\n" * LONGEST_FILE,
    "app/page.py": "from captioning import train",
    "benchmarks/__init__.py": "",
    "benchmarks/speed.py": "from captioning import train\nfrom BLIP.model import BlipCaptioner",
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
    (imports_against_the_grain, "vlm/model.py", "from captioning.config import Config"),
    (imports_against_the_grain, "vlm/model.py", "from BLIP import BlipCaptioner"),
    (packages_without_a_place, "another/model.py", "import torch"),
    (ways_to_a_captioner, "captioning/metrics/clip.py", "from vlm import model"),
    (questions_which_captioner, "captioning/models/x.py", "from vlm.model import VlmCaptioner"),
    (imports_against_the_grain, "captioning/train.py", "import app.page"),
    (imports_against_the_grain, "app/page.py", "import benchmarks"),
    (imports_against_the_grain, "captioning/train.py", "from benchmarks import speed"),
    (imports_of_a_later_room, "captioning/data/files.py", "from captioning.models import build"),
    (imports_of_a_later_room, "captioning/train.py", "__main__\nimport captioning.sweep.run"),
    (imports_of_a_later_room, "captioning/models/x.py", "def f():\n    from .. import train"),
    (imports_of_a_later_room, "captioning/sweep/x.py", "from captioning.demo.runs import y"),
    (circles, "BLIP/model.py", "from BLIP import Captioner"),
    (circles, "smile/loss.py", "from smile import Loss"),
    (loose_files, "captioning/loading.py", "def main():\n    pass"),
    (questions_which_captioner, "captioning/models/x.py", "from BLIP.model import BlipCaptioner"),
    (questions_which_captioner, "app/page.py", "isinstance(x, baselines.ClassicCaptioner)"),
    (questions_which_captioner, "captioning/models/x.py", 'config.model == "blip"'),
    (questions_which_captioner, "captioning/train.py", '"__main__"\nconfig["model"] in NAMES'),
    (questions_which_captioner, "benchmarks/x.py", "isinstance(x, (str, BLIP.BlipCaptioner))"),
    (questions_which_captioner, "benchmarks/speed.py", '("lstm", 1) != (run.config.model, n)'),
    (ways_to_a_captioner, "captioning/data/files.py", "from BLIP import model"),
    (ways_to_a_captioner, "captioning/data/files.py", "import BLIP.model"),
    (ways_to_a_captioner, "captioning/data/files.py", "import baselines"),
    (ways_to_a_captioner, "captioning/data/files.py", "from captioning.train import x"),
    (ways_to_a_captioner, "BLIP/weights/download.py", "from .model import Captioner"),
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
