"""scripts/setup.sh, in copies that require a package of a few bytes; no network.

Environments with pip take seconds to make: their tests run with `bash scripts/soak.sh` only.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile

import pytest
import uv

NOWHERE = "http://127.0.0.1:9/simple"
AS_PYTHON = 'case "$*" in *version_info*) echo Python {};; esac'
CONTENT = "lib/python*/site-packages/tiny_package.py"
UNREACHABLE = "the package index cannot be reached"
PYPROJECT = """
[project]
name = "tiny"
version = "1"
[project.optional-dependencies]
app = ["tiny-tool==1.0"]
dev = ["tiny-tool"]
"""


class Project:
    """Scripts, requirements of tiny-package, and wheels of its versions 1.0 and 1.1."""

    def __init__(self, repository, root, pip):
        """pip: whether environments have it. The folder of wheels is then pip's setting."""
        self.root, self.venv, self.wheels = root, root / ".venv", root / "wheels"
        self.interpreter, self.log = self.venv / "bin/python", self.venv / "setup.log"
        shutil.copytree(repository / "scripts", root / "scripts")
        self.wheels.mkdir()
        for name in ("tiny_package-1.0", "tiny_package-1.1", "tiny_tool-1.0", "tiny_tool-1.1"):
            self.write_wheel(name)
        python = f'exec "{sys.executable}"'
        bare = f'[ "$2" != venv ] || {python} -m venv --without-pip "$3" "$4"\n'
        self.write_program("python3", f'{"" if pip else bare}{python} "$@"')
        self.write_program("uv", f'exec "{uv.find_uv_bin()}" "$@"')
        (root / "pyproject.toml").write_text(PYPROJECT)
        self.require("tiny-package>=1.0", 'absent; python_version < "3"')
        self.lock("tiny-package==1.0", "tiny-tool==1.0", "of-another-platform==3.0")
        self.packages = {"UV_OFFLINE": "1", "UV_FIND_LINKS": self.wheels}
        if pip:
            self.packages = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{root / 'bin'} {self.wheels}"}

    def require(self, *lines, name="requirements.txt"):
        (self.root / name).write_text("\n".join(lines))

    def lock(self, *lines):
        self.require(*lines, name="requirements-lock.txt")

    def write_wheel(self, name, program=""):
        """Write a wheel of an empty module, or of a program."""
        info, (package, version) = f"{name}.dist-info", name.split("-")
        files = {
            f"{name}.data/scripts/{package}" if program else f"{package}.py": program,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
        with zipfile.ZipFile(self.wheels / f"{name}-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                entry = zipfile.ZipInfo(path)
                entry.external_attr = 0o100755 << 16  # executable
                wheel.writestr(entry, text)

    def write_program(self, name, text):
        """Write a program that is first on PATH, or in an environment. Return its path."""
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)  # in an environment, a link to the Python that runs this
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def start(self, *arguments, **variables):
        given = {"HOME": self.root, "PIP_CONFIG_FILE": os.devnull, **self.packages, **variables}
        given["PATH"] = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        given.update(PIP_RETRIES="0", UV_HTTP_RETRIES="0")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = ["bash", self.root / "scripts/setup.sh", *arguments]
        env = {name: str(value) for name, value in given.items() if value}
        return subprocess.Popen(command, env=env, start_new_session=True, **pipes)

    def use(self, *arguments, interpreter=None, **variables):
        """Set up, which has to print the environment's interpreter. Return stderr."""
        process = self.start(*arguments, **variables)
        output, errors = process.communicate()
        assert (output, process.returncode) == (f"{interpreter or self.interpreter}\n", 0), errors
        return errors

    def refuse(self, *words, **variables):
        """Set up, which has to fail with an error line of these words. Return what comes before."""
        process = self.start(**variables)
        output, errors = process.communicate()
        *lines, last = errors.splitlines()
        assert (output, process.returncode) == ("", 1), errors
        assert last.startswith("error: ") and all(str(word) in last for word in words)
        return lines

    def versions(self):
        found = self.venv.glob("lib/python*/site-packages/tiny_*.dist-info")
        return dict(path.stem.split("-") for path in found)


@pytest.fixture
def project(request, tmp_path, repository):
    """A project, with a space in its path, in which nothing has been set up."""
    pip = request.node.get_closest_marker("soak") is not None
    return Project(repository, tmp_path / ("project" if pip else "my project"), pip)


def test_locked_versions_are_installed_once_and_latest_takes_what_the_requirements_allow(project):
    project.lock("tiny-package==1.0.5")  # which is no longer there
    project.refuse("cannot install", "LATEST=1")
    project.lock("tiny-package==1.0", "tiny-tool==1.0")
    for extra, more in (((), {}), (("dev",), {"tiny_tool": "1.0"})):
        assert "installing packages" in project.use(*extra)
        assert project.versions() == {"tiny_package": "1.0", **more}
    project.log.unlink()
    project.lock("tiny-package==1.1")  # what satisfies is left unchanged
    assert project.use() == "" and not project.log.exists()
    shutil.rmtree(project.venv)
    project.use(LATEST="1")
    assert project.versions() == {"tiny_package": "1.1"}


def test_active_environment_is_used_if_it_satisfies_and_left_as_it_is(project):
    project.use()
    active = project.venv.rename(project.root / "active")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        assert project.use(**{variable: active}, interpreter=active / "bin/python") == ""
    assert not project.venv.exists()
    assert f"{active} lacks tiny-tool==1.0: using" in project.use("app", VIRTUAL_ENV=active)
    assert project.versions() == {"tiny_package": "1.0", "tiny_tool": "1.0"}
    assert not list(active.glob("lib/*/site-packages/tiny_tool-1.0.dist-info"))
    project.write_program(active / "bin/python", "exit 1")
    assert "a Python that works" in project.use(VIRTUAL_ENV=active)


def test_what_is_unusable_is_refused_before_anything_is_made(project):
    old = project.write_program("old", AS_PYTHON.format("3.8"))
    assert project.refuse("is Python 3.8", "3.9 or later", PYTHON=old) == []
    assert not project.venv.exists()
    project.use()
    other = project.write_program("other", AS_PYTHON.format("3.99"))
    assert project.refuse("has Python", "not Python 3.99", PYTHON=other) == []
    thesis = project.root / "work/thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("two years")
    assert project.refuse("is no environment", VENV=thesis.parent) == []
    assert thesis.read_text() == "two years" and project.versions()


def test_killed_installation_is_made_again_and_two_calls_install_once(project):
    """A package is half-written, and the installer would take it for complete."""
    project.use()
    next(project.venv.glob(CONTENT)).unlink()
    project.require("tiny-package==1.0", "another-package")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = project.start(UV_OFFLINE="", UV_INDEX_URL=index)
        silent.settimeout(60)
        connection, _ = silent.accept()  # the installer is at work
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        connection.close()
    project.require("tiny-package==1.0")
    said = [process.communicate() for process in (project.start(), project.start())]
    assert [output for output, _ in said] == [f"{project.interpreter}\n"] * 2
    errors = "".join(errors for _, errors in said)
    assert errors.count("did not finish") == errors.count("installing") == 1
    assert list(project.venv.glob(CONTENT)) and project.use() == ""


@pytest.mark.soak
def test_pips_variables_and_files_say_where_packages_come_from(project, tmp_path):
    (tmp_path / "mine.txt").write_text("tiny-tool==1.0\n")
    project.use("dev", PIP_CONSTRAINT=tmp_path / "mine.txt", LATEST="1")
    assert project.versions() == {"tiny_package": "1.1", "tiny_tool": "1.0"}
    project.require("tiny-package==1.0", "another-package")  # the environment stays
    given = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": NOWHERE}
    assert len(project.refuse(UNREACHABLE, project.log, **given)) == 1
    assert f" {NOWHERE}/" in project.log.read_text()
    project.require("tiny-package==1.1")
    assert project.use() == ""
    shutil.rmtree(project.venv)
    lines = "".join(f"\n    {project.root / folder}" for folder in ("bin", "wheels"))
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links ={lines}\n")
    nothing = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""}
    project.use(**nothing, PIP_CONFIG_FILE=tmp_path / "pip.conf", LATEST="1")
    assert project.versions() == {"tiny_package": "1.1"}


@pytest.mark.soak
def test_without_uv_pip_checks_and_installs_it(project):
    project.write_program("uv", "exit 127")
    nowhere = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": NOWHERE}
    project.refuse(UNREACHABLE, **nowhere)
    project.write_wheel("uv-1.0", f'#!/bin/sh\nexec "{uv.find_uv_bin()}" "$@"\n')
    project.use()
    assert project.versions() == {"tiny_package": "1.0"} and (project.venv / "bin/uv").exists()
    active = project.venv.rename(project.root / "active")
    (active / "bin/uv").unlink()
    assert project.use(VIRTUAL_ENV=active, interpreter=active / "bin/python") == ""
    assert f"{active} lacks smile-captioning[app]: using" in project.use("app", VIRTUAL_ENV=active)
