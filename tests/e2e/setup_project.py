"""A project of a few bytes that scripts/setup.sh sets up in tests: no network, no large package."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

OWN_VARIABLES = ("VENV", "PYTHON", "LATEST", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")


class Project:
    """A folder with the scripts, requirements of its own, and a PATH that begins in it."""

    def __init__(self, root):
        self.root = root
        self.venv = root / ".venv"
        self.interpreter = self.venv / "bin" / "python"
        self.log = self.venv / "setup.log"

    def require(self, *lines):
        (self.root / "requirements.txt").write_text("\n".join(lines) + "\n")

    def environment(self, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        for name in OWN_VARIABLES:
            kept.pop(name, None)
        kept["PATH"] = f"{self.root / 'bin'}{os.pathsep}{kept['PATH']}"
        kept.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1")
        kept.update(PIP_FIND_LINKS=str(self.root / "wheels"), PIP_DISABLE_PIP_VERSION_CHECK="1")
        kept.update({name: str(value) for name, value in variables.items()})
        return {name: value for name, value in kept.items() if value != ""}

    def start(self, *arguments, **variables):
        return subprocess.Popen(
            ["bash", str(self.root / "scripts" / "setup.sh"), *arguments],
            env=self.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def set_up(self, *arguments, **variables):
        process = self.start(*arguments, **variables)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def lock(self, *lines):
        (self.root / "requirements-lock.txt").write_text("\n".join(lines) + "\n")

    def versions(self):
        command = [self.interpreter, "-m", "pip", "list", "--format=json"]
        found = json.loads(subprocess.run(command, capture_output=True).stdout)
        return {entry["name"]: entry["version"] for entry in found if "tiny" in entry["name"]}

    def has(self, module):
        return subprocess.run([self.interpreter, "-c", f"import {module}"]).returncode == 0


def write_wheel(folder, name, version, *metadata):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fill(root, repository):
    """Make a project in a folder: requirements that are met from a folder of wheels, no network."""
    shutil.copytree(repository / "scripts", root / "scripts")
    (root / "wheels").mkdir()
    for name in ("tiny_package", "tiny_tool"):
        write_wheel(root / "wheels", name, "1.0")
    write_program(root / "bin" / "python3", f'exec "{sys.executable}" "$@"')
    write_disk(root, free_gigabytes=50)
    for more in ("dev", "app"):
        path = root / f"requirements-{more}.txt"
        path.write_text("-r requirements.txt\ntiny-tool==1.0\n")
    project = Project(root)
    project.lock()
    project.require("tiny-package==1.0", 'absent; python_version < "3"  # left out by its marker')
    return project


def write_disk(root, free_gigabytes):
    free = free_gigabytes * 1024 * 1024
    write_program(root / "bin" / "df", f"printf 'Filesystem\\n/dev/disk 0 0 {free} 0%% /\\n'")


def assert_refused(result, *words):
    lines = result.stderr.splitlines()
    assert result.returncode == 1
    assert result.stdout == ""
    assert lines[-1].startswith("error: ")
    assert sum(line.startswith("error: ") for line in lines) == 1
    for word in words:
        assert str(word) in lines[-1]
