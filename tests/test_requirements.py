"""Requirements resolve on every Python, as they are locked; the wheel needs torch alone."""

import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from tests.markers import slow

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
# Have no wheels; their source builds without a compiler.
BUILT = ("docopt", "fairscale")


def required_on(python, lines, extra=""):
    """Return the requirements whose markers hold for a Python on Linux x86-64, and an extra."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
    lines = [line.split("  #")[0] for line in lines if line and not line.startswith("#")]
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in map(Requirement, lines)
        if requirement.marker is None or requirement.marker.evaluate({**LINUX, **environment})
    ]


@pytest.mark.parametrize("python", [PYTHONS[0], *map(slow, PYTHONS[1:])])
def test_the_requirements_resolve_to_what_is_locked(repository, python):
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--no-header", "--no-annotate", "--quiet"]
    uv += ["--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu"]
    uv += ["--no-python-downloads", "--only-binary", ":all:"]
    uv += [word for name in BUILT for word in ("--no-binary", name)]
    uv += ["--constraints", "requirements-lock.txt", "pyproject.toml", "--extra", "dev"]
    found = subprocess.run(uv, cwd=repository, capture_output=True, text=True)
    if "error sending request" in found.stderr:
        pytest.skip("needs the package index, which cannot be reached")
    assert found.returncode == 0, found.stderr
    locked = required_on(python, (repository / "requirements-lock.txt").read_text().splitlines())
    assert found.stdout.splitlines() == locked, "make the file anew: its first lines say how"


def test_wheel_holds_the_objective_alone_and_asks_for_torch_alone(repository, tmp_path):
    """Built as `pip install .` does, out of a copy of the tree."""
    pytest.importorskip("setuptools", minversion="77", reason="builds wheels from 77 on")
    names = (".*", "data", "checkpoints", "output", "build", "*.egg-info", "__pycache__")
    tree = shutil.copytree(repository, tmp_path / "tree", ignore=shutil.ignore_patterns(*names))
    build = "from setuptools import build_meta; build_meta.build_wheel('.')"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", build], cwd=tree, env=environment, check=True)
    (wheel,) = tree.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    files = repository.glob("smile/**/*.py")
    assert sorted(names) == sorted(path.relative_to(repository).as_posix() for path in files)
    required = re.findall("^Requires-Dist: (.*)", text, re.MULTILINE)
    assert required_on("3.11", required) == ["torch>=2.8"]
    listed = (repository / "requirements.txt").read_text().splitlines()
    for python in PYTHONS:
        extra = required_on(python, required, "programs")
        assert sorted(extra) == sorted(required_on(python, listed))
    for extra in ("app", "cluster", "dev"):  # each includes the programs' requirements
        assert "smile-captioning" in required_on("3.11", required, extra)
