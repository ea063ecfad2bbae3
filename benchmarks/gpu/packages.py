"""Finds packages that are missing in the current Python, and installs their wheels to a folder."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTED_AS = {"pillow": "PIL"}


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def required() -> dict[str, str]:
    """{distribution: module to import} for requirements.txt."""
    names = re.findall(r"^[\w.-]+", (REPOSITORY / "requirements.txt").read_text(), re.M)
    return {name: IMPORTED_AS.get(name, name) for name in names}


def install(wheels: Path, folder: Path) -> list[str]:
    """Install missing packages to `folder`; return pip's errors.

    Packages that are installed already are never upgraded.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-compile", "--upgrade"]
    command += ["--find-links", str(wheels), "--target", str(folder)]
    errors = []
    # Installed one by one: a single incompatible wheel would prevent the installation of all.
    for name in sorted({path.name.split("-")[0] for path in wheels.glob("*.whl")}):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            done = subprocess.run([*command, name], capture_output=True, text=True)
            if done.returncode:
                errors.append(f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    return errors
