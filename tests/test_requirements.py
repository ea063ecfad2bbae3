"""The files of exact versions agree with the requirements and with what is installed."""

import difflib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKED = ("3.9", "3.11")  # the Pythons of .ci/run
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}


def lines_of(path):
    """Yield the lines of a requirements file and of those it includes, without comments."""
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("-r "):
            yield from lines_of(path.with_name(line[3:]))
        elif line:
            yield line


def unmet(requirements, locked, python):
    """Return the requirements that a list of NAME==VERSION does not satisfy on a Python."""
    versions = dict(re.fullmatch(r"([a-z0-9-]+)==([\w.]+)", line).groups() for line in locked)
    environment = {**LINUX, "python_version": python, "python_full_version": f"{python}.0"}
    return [
        str(needed)
        for needed in map(Requirement, requirements)
        if (needed.marker is None or needed.marker.evaluate(environment))
        and not _meets(versions.get(canonicalize_name(needed.name)), needed)
    ]


def _meets(version, requirement):
    return version is not None and version in requirement.specifier


@pytest.mark.parametrize("python", LOCKED)
def test_every_requirement_is_locked(repository, python):
    requirements = list(lines_of(repository / "requirements-dev.txt"))
    for name in ("torch", "gradio", "pytest"):  # of all three files
        assert any(line.startswith(name) for line in requirements)
    locked = lines_of(repository / f"requirements-lock-py{python}.txt")
    assert unmet(requirements, locked, python) == []


@pytest.mark.parametrize(
    ("requirement", "python", "met"),
    [
        ("Ruamel.YAML>=0.18", "3.9", True),
        ("ruamel.yaml>=0.19", "3.9", False),
        ("absent", "3.9", False),
        ('absent; python_version >= "3.10"', "3.9", True),
        ('absent; python_version >= "3.10"', "3.11", False),
    ],
)
def test_a_requirement_that_is_not_met_is_found(requirement, python, met):
    assert unmet([requirement], ["ruamel-yaml==0.18.2"], python) == ([] if met else [requirement])


@pytest.mark.skipif(os.environ.get("LATEST") == "1", reason="LATEST=1: no locked versions")
@pytest.mark.skipif(
    not Path(sys.prefix, "setup.log").exists(), reason="scripts/setup.sh has not made this Python's"
)
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="locked for Linux x86-64"
)
def test_what_is_needed_is_installed_as_it_is_locked(repository):
    path = repository / "requirements-lock-py{}.{}.txt".format(*sys.version_info)
    if not path.exists():
        pytest.skip(f"no {path.name}")
    program = [sys.executable, "scripts/check_requirements.py", "--versions"]
    installed = subprocess.run(
        [*program, "requirements-dev.txt"], cwd=repository, capture_output=True, text=True
    ).stdout.splitlines()
    difference = difflib.unified_diff(list(lines_of(path)), installed, path.name, "installed", n=0)
    assert list(difference) == [], (
        "test in an environment that scripts/setup.sh has made of the file (VENV=...), or make the "
        "file anew: bash scripts/lock.sh"
    )
